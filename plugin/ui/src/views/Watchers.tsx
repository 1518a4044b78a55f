// The watchers that start DAGs: Airflow's, so those of all brokers stand in one list.
import { Badge, Text } from "@chakra-ui/react";
import { type Schemas, get } from "../api";
import { Answered, PageLink, PlaceLink, Section, When } from "../parts";
import { useAnswer } from "../queries";
import { Rows, columnsOf } from "../Rows";

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
    header: "DAG",
    id: "dags",
  }),
  column.accessor("problem", {
    cell: ({ row: { original: one } }) =>
      one.problem === null ? (
        <Badge colorPalette="green">can ring</Badge>
      ) : (
        <>
          <Badge colorPalette="red">cannot ring</Badge> {one.problem}
        </>
      ),
    header: "State",
  }),
  column.accessor("topic", {
    cell: ({ row: { original: one } }) => (
      <PageLink to={{ broker: one.connection_id, topic: one.topic }} view="messages">
        {one.topic}
      </PageLink>
    ),
    header: "Topic",
  }),
  column.accessor("group", { header: "Group" }),
  column.accessor((one) => one.rang_at ?? "", {
    cell: ({ row: { original: one } }) => <When at={one.rang_at} nowAt={nowAt} />,
    header: "Last ring",
    id: "rang_at",
  }),
  column.accessor("connection_id", { header: "Connection" }),
  column.accessor((one) => `${one.asset} ${one.name}`, {
    cell: ({ row: { original: one } }) => `${one.name} of ${one.asset}`,
    header: "Watcher, asset",
    id: "asset",
  }),
  column.accessor((one) => one.triggerer ?? "", { header: "Triggerer", id: "triggerer" }),
];

export function Watchers() {
  const answer = useAnswer(["watchers"], (signal) => get<Schemas["Watchers"]>("watchers", {}, signal));
  return (
    <Section title="Watchers of all DAGs, those that cannot ring first">
      <Answered answer={answer} asOf={(page) => page.now_at}>
        {(page) => (
          <>
            <Rows
              columns={columns(page.now_at)}
              empty="No DAG that is active has a watcher of a topic."
              keyOf={(one) => [one.connection_id, one.asset, one.name, one.topic, one.group].join(" ")}
              label="Watchers"
              rows={page.watchers}
              sorts
            />
            {page.more && (
              <Text color="fg.muted" fontSize="sm" mt={3}>
                Only the first {page.watchers.length} by asset are shown.
              </Text>
            )}
          </>
        )}
      </Answered>
    </Section>
  );
}
