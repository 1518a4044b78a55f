// Task instances of Airflow: their names at the broker and their addresses in Airflow's UI.

export type Task = { dagId: string; mapIndex: number; runId: string; taskId: string };

/** The task instance that a consumer's name stands for; null for a name of another form, or a digest. */
export function taskOf(consumer: string): Task | undefined {
  const parts = /^airflow:([^/]+)\/([^/]+)\/([^/]+)\/(-?\d+)$/.exec(consumer);
  if (!parts) return undefined;
  const [, dagId = "", runId = "", taskId = "", mapIndex] = parts;
  return { dagId, mapIndex: Number(mapIndex), runId, taskId };
}

/** Its page in Airflow's UI. */
export function pageOf({ dagId, mapIndex, runId, taskId }: Task): string {
  const [dag, run, task] = [dagId, runId, taskId].map(encodeURIComponent);
  return `/dags/${dag}/runs/${run}/tasks/${task}${mapIndex < 0 ? "" : `/mapped/${mapIndex}`}`;
}

/** Its address in Airflow's public API. */
export function resourceOf({ dagId, mapIndex, runId, taskId }: Task): string {
  const [dag, run, task] = [dagId, runId, taskId].map(encodeURIComponent);
  return `dags/${dag}/dagRuns/${run}/taskInstances/${task}${mapIndex < 0 ? "" : `/${mapIndex}`}`;
}
