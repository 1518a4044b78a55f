// The requests that leave before the page is rendered.
import { afterEach, expect, test, vi } from "vitest";
import { LAST_BROKER, askAhead } from "./ahead";
import { newClient } from "./queries";
import { store } from "./stored";

afterEach(() => {
  localStorage.clear();
  vi.unstubAllGlobals();
});

/** The addresses of the requests that leave before the list of brokers has come. */
function askedAhead(search: string): string[] {
  const asked: string[] = [];
  vi.stubGlobal("fetch", (address: RequestInfo | URL) => {
    asked.push(new URL(address instanceof Request ? address.url : address, "http://airflow").pathname);
    return new Promise(() => undefined);
  });
  askAhead(newClient(), { pathname: "/plugin/duewheel", search });
  return asked.map((path) => path.replace(/^.*\/api\//, ""));
}

const OF_BILLING = ["brokers", "brokers/billing/overview", "brokers/billing/pulse"];

test("the broker of the last visit or of the address is asked before the list has come", () => {
  expect(askedAhead("")).toEqual(["brokers"]);
  expect(askedAhead("?broker=billing")).toEqual(OF_BILLING);
  store(LAST_BROKER, "billing");
  expect(askedAhead("")).toEqual(OF_BILLING);
  expect(askedAhead("?view=groups")).toEqual([]);
});
