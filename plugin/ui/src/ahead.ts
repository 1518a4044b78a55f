// What the page shows first is asked for while Airflow still mounts it.
import type { QueryClient } from "@tanstack/react-query";
import { type Schemas, get } from "./api";
import { type Question, questionOf } from "./queries";
import { stored } from "./stored";
import { axisIn } from "./views/TimeAxis";

export const brokersQuestion: Question<Schemas["BrokerChoices"]> = [
  ["brokers"],
  (signal) => get<Schemas["BrokerChoices"]>("brokers", {}, signal),
];

/** The browser keeps the broker that its user had last under this name. */
export const LAST_BROKER = "broker";

/** The broker that the page shows: the one in the address, else the last one, else the first. */
export const shownBroker = (asked: string | null, brokers: Schemas["BrokerChoice"][]): string | undefined =>
  asked || (brokers.find((one) => one.connection_id === stored(LAST_BROKER)) ?? brokers[0])?.connection_id;

/** Asks for the overview if the address is that of one. An answer that fails is asked for again by whoever shows it. */
export function askAhead(
  client: QueryClient,
  { pathname, search }: { pathname: string; search: string },
): void {
  const query = new URLSearchParams(search);
  if (!pathname.endsWith("/plugin/duewheel") || (query.get("view") ?? "overview") !== "overview") return;
  const ask = <T>([queryKey, queryFn]: Question<T>) =>
    client.fetchQuery({ queryFn: ({ signal }) => queryFn(signal), queryKey });
  // One after the other has its turn at the broker, and the charts take longer to draw than the line above them.
  const askBroker = (broker: string) =>
    Promise.all([
      ask(
        questionOf(
          broker,
          "overview",
          axisIn((name) => query.get(name) ?? ""),
        ),
      ),
      ask(questionOf(broker, "pulse")),
    ]);
  const askAll = async () => {
    const listed = ask(brokersQuestion);
    // The list mostly confirms the broker of the last visit, which need not wait for it.
    const last = query.get("broker") || stored(LAST_BROKER);
    if (typeof last === "string") askBroker(last).catch(() => undefined);
    const { brokers } = await listed;
    const broker = shownBroker(query.get("broker"), brokers);
    if (broker === undefined || broker === last || !brokers.some((one) => one.connection_id === broker))
      return;
    await askBroker(broker);
  };
  askAll().catch(() => undefined);
}
