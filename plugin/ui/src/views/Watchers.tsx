// The watchers that start DAGs: Airflow's, so those of all brokers stand in one list.
import { Badge } from "@chakra-ui/react";
import { type Schemas, get } from "../api";
import { Answered } from "../Answered";
import { GroupLink, PlaceLink, TopicLink } from "../links";
import { CutNote } from "../Pages";
import { Section, When } from "../parts";
import { rowsIn, useAnswer } from "../queries";
import { Rows, columnsOf } from "../Rows";
import { Exports } from "../Exports";
import { TEXT } from "../texts";
import { Words } from "../Words";

type Watcher = Schemas["Watcher"];

const column = columnsOf<Watcher>();

const columns = (nowAt: string) => [
  column.accessor((one) => one.dags.join(), {
    cell: ({ row: { original: one } }) =>
      one.dags.map((dag, index) => (
        <span key={dag}>
          {index > 0 && ", "}
          <PlaceLink to={`/dags/${encodeURIComponent(dag)}`}>{dag}</PlaceLink>
        </span>
      )),
    header: TEXT.dag,
    id: "dags",
  }),
  column.accessor("problem", {
    cell: ({ row: { original: one } }) =>
      one.problem === null ? (
        <Badge colorPalette="green">{TEXT.working}</Badge>
      ) : (
        <>
          <Badge colorPalette="red">{TEXT.broken}</Badge> <Words of={one.problem} />
        </>
      ),
    header: TEXT.state,
  }),
  column.accessor("topic", {
    cell: ({ row: { original: one } }) => <TopicLink broker={one.connection_id} topic={one.topic} />,
    header: TEXT.topic,
  }),
  column.accessor("group", {
    cell: ({ row: { original: one } }) => (
      <GroupLink broker={one.connection_id} group={one.group} topic={one.topic} />
    ),
    header: TEXT.group,
  }),
  column.accessor((one) => one.rang_at ?? "", {
    cell: ({ row: { original: one } }) => <When at={one.rang_at} nowAt={nowAt} />,
    header: TEXT.lastRing,
    id: "rang_at",
  }),
  column.accessor("connection_id", { header: TEXT.connection }),
  column.accessor((one) => `${one.asset} ${one.name}`, {
    cell: ({ row: { original: one } }) => TEXT.watcherOfAsset(one.name, one.asset),
    header: TEXT.watcherAndAsset,
    id: "asset",
  }),
  column.accessor((one) => one.triggerer ?? "", { header: TEXT.triggerer, id: "triggerer" }),
];

export function Watchers() {
  const answer = useAnswer(["watchers"], (signal) => get<Schemas["Watchers"]>("watchers", {}, signal));
  return (
    <Section
      count={rowsIn(answer, (page) => [page.watchers.length, !page.more])}
      title={TEXT.watchersOfAllDags}
    >
      <Answered answer={answer}>
        {(page) => (
          <>
            <Rows
              columns={columns(page.now_at)}
              empty={TEXT.noDagHasAWatcher}
              keyOf={(one) => [one.connection_id, one.asset, one.name, one.topic, one.group].join(" ")}
              label={TEXT.watchers}
              list="watchers"
              read={{ at: page.now_at, readAt: answer.readAt }}
              rows={page.watchers}
              sorts
            />
            {page.more && (
              <CutNote of={page.watchers}>{TEXT.onlyTheFirstByAsset(page.watchers.length)}</CutNote>
            )}
            <Exports list="watchers" of={page.watchers} />
          </>
        )}
      </Answered>
    </Section>
  );
}
