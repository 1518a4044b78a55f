// What the verdict only counts: five other problems at most, a sentence each with the way to its cure.
import { List as ItemList, Text } from "@chakra-ui/react";
import { PageLink } from "./links";
import { Section } from "./parts";
import { otherProblemsOf } from "./problems";
import { TEXT } from "./texts";
import { useTroubles } from "./Verdict";
import { GroupsLeftOut } from "./views/Groups";

const MOST = 5;

export function NeedsAttention({ broker }: { broker: string }) {
  const { pulse, watchers } = useTroubles(broker);
  if (!pulse) return null;
  const groupsTo = pulse.groups_at === null ? "" : pulse.groups_to;
  const { all, listed } = otherProblemsOf(pulse, watchers ?? []);
  if (listed.length === 0 && groupsTo === null) return null;
  return (
    <Section extra={<PageLink view="groups">{TEXT.allGroups}</PageLink>} title={TEXT.needsAttention}>
      <GroupsLeftOut to={groupsTo} />
      <ItemList.Root aria-label={TEXT.needsAttention} fontSize="sm" gap={2} listStyle="none">
        {listed.slice(0, MOST).map(({ button, to, view, words }, index) => (
          <ItemList.Item
            alignItems="baseline"
            columnGap={3}
            css={{ overflowWrap: "anywhere" }}
            display="flex"
            flexWrap="wrap"
            key={`${index} ${words}`}
          >
            <span>{words}</span>
            <PageLink to={to} view={view}>
              {button}
            </PageLink>
          </ItemList.Item>
        ))}
      </ItemList.Root>
      {all > MOST && (
        <Text color="fg.muted" fontSize="sm" mt={2}>
          {TEXT.andMoreProblems(all - MOST)}
        </Text>
      )}
    </Section>
  );
}
