import { expect, test } from "vitest";
import { pageOf, resourceOf, taskOf } from "./tasks";

const send = { dagId: "shop", mapIndex: -1, runId: "manual__2026-01-01T00:00:00+00:00", taskId: "a.send" };

test("a consumer's name tells its task instance", () => {
  expect(taskOf("airflow:shop/manual__2026-01-01T00:00:00+00:00/a.send/-1")).toEqual(send);
  expect(taskOf("airflow:shop/manual__2026-01-01T00:00:00+00:00/a.send/7")?.mapIndex).toBe(7);
});

test("other names tell none", () => {
  for (const name of ["worker-1", "airflow:sha256:0123", "airflow:a/b/c", "airflow:a/b/c/d/-1"]) {
    expect(taskOf(name)).toBeUndefined();
  }
});

test("its addresses hold what a run's id may hold", () => {
  const run = "manual__2026-01-01T00%3A00%3A00%2B00%3A00";
  expect(pageOf(send)).toBe(`/dags/shop/runs/${run}/tasks/a.send`);
  expect(pageOf({ ...send, mapIndex: 3 })).toBe(`/dags/shop/runs/${run}/tasks/a.send/mapped/3`);
  expect(resourceOf({ ...send, mapIndex: 3 })).toBe(`dags/shop/dagRuns/${run}/taskInstances/a.send/3`);
});
