// The calls of the page's own API. Their types are generated from the API's description: see `npm run types`.
import type { components, paths } from "./schema";
import { TEXT } from "./texts";

export type Schemas = components["schemas"];

type OfBroker = "/api/brokers/{connection_id}/";
type Read<T> = { get: { responses: { 200: { content: { "application/json": T } } } } };

/** The paths below a broker's that may be read. */
export type ReadPath = {
  [Path in keyof paths]: paths[Path] extends Read<unknown>
    ? Path extends `${OfBroker}${infer Rest}`
      ? Rest
      : never
    : never;
}[keyof paths];

/** The answer of such a path. */
export type Reading<Path extends ReadPath> = paths[`${OfBroker}${Path}`] extends Read<infer T> ? T : never;

/** Why a call failed, in words for people. */
export class Failure extends Error {
  constructor(
    readonly status: number,
    readonly kind: string,
    detail: string,
  ) {
    super(detail);
  }

  /** False if the server refused before it did anything; otherwise it is not known whether it did. */
  get wasCarriedOut(): false | undefined {
    return (this.status >= 400 && this.status < 500) || this.kind === "BrokerBusy" ? false : undefined;
  }
}

/** What the page refuses by itself, before it asks the server. */
export const refusal = (kind: string, detail: string) => new Failure(422, kind, detail);

export type Parameters = Record<string, string | number | boolean | null | undefined>;

// Airflow writes its own address, with a proxy's path prefix, into the page's base address.
const root = () => new URL("duewheel/api/", document.baseURI);
const airflow = () => new URL("api/v2/", document.baseURI);

/** Where Airflow lets a user log in, and from there come back to this view. */
export function loginAddress(): string {
  const url = new URL("auth/login", airflow());
  url.searchParams.set("next", location.href);
  return url.href;
}

/** The address of a call; a parameter without a value is left out. */
export function addressOf(path: string, parameters: Parameters = {}): URL {
  const url = new URL(path, root());
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, String(value));
  }
  return url;
}

let version: string | null = null;
let upgraded = false;
const listeners = new Set<() => void>();

/** Whether the API is of another version since this page was loaded, and a way to be told of it. */
export const isUpgraded = () => upgraded;
export function onUpgrade(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function noteVersion(said: string | null): void {
  if (said === null || said === version) return;
  upgraded = version !== null;
  version = said;
  if (upgraded) listeners.forEach((listener) => listener());
}

/** How long the page waits for an answer: the server gives up sooner, but a network may lose a request in silence. */
const LONGEST_READ_SECONDS = 60;
const LONGEST_ACT_SECONDS = 180;

async function call<T>(url: URL, init: RequestInit, longestSeconds = LONGEST_READ_SECONDS): Promise<T> {
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), longestSeconds * 1000);
  const signal = init.signal ? AbortSignal.any([init.signal, late.signal]) : late.signal;
  try {
    return await answerOf<T>(url, { credentials: "same-origin", ...init, signal });
  } finally {
    clearTimeout(timer);
  }
}

async function answerOf<T>(url: URL, init: RequestInit): Promise<T> {
  let response: Response;
  try {
    response = await fetch(url, init);
    noteVersion(response.headers.get("Duewheel-Page"));
    if (response.ok) return (await response.json()) as T;
  } catch {
    // The answer did not arrive, or not all of it, or a proxy answered instead.
    throw new Failure(0, "Unreachable", TEXT.airflowsApiServerDoesNotAnswer);
  }
  throw await failureOf(response);
}

export async function failureOf(response: Response): Promise<Failure> {
  if (response.status === 401) {
    return new Failure(401, "NotLoggedIn", TEXT.yourLoginHasExpired);
  }
  let said: unknown;
  try {
    said = await response.json();
  } catch {
    said = undefined;
  }
  const problem = (said ?? {}) as { error?: unknown; detail?: unknown };
  const detail =
    typeof problem.detail === "string"
      ? problem.detail
      : response.status === 422
        ? TEXT.aValueInTheFilterCannot
        : TEXT.airflowsApiServerAnsweredWithStatus(response.status);
  return new Failure(response.status, typeof problem.error === "string" ? problem.error : "Failed", detail);
}

export const get = <T>(path: string, parameters: Parameters = {}, signal?: AbortSignal) =>
  call<T>(addressOf(path, parameters), signal ? { signal } : {});

/** A reading call on one broker. A parameter that the path names in braces goes there, the others into the query. */
export function read<Path extends ReadPath>(
  broker: string,
  path: Path,
  parameters: Parameters,
  signal: AbortSignal,
): Promise<Reading<Path>> {
  const named = new Set<string>();
  const filled = path.replaceAll(/\{(\w+)\}/g, (_, name: string) => {
    named.add(name);
    return encodeURIComponent(String(parameters[name]));
  });
  const rest = Object.fromEntries(Object.entries(parameters).filter(([name]) => !named.has(name)));
  return get(ofBroker(broker, filled), rest, signal);
}

/** A call of Airflow's public API. */
export const getOfAirflow = <T>(path: string, signal: AbortSignal) =>
  call<T>(new URL(path, airflow()), { signal });

let hearNumbers: (broker: string, pulse: Schemas["Pulse"]) => void = () => undefined;

/** Be told of the numbers that the answer to an act carries. */
export function onNumbers(listener: typeof hearNumbers): void {
  hearNumbers = listener;
}

/** An act on one broker. */
export async function post<T extends { pulse?: Schemas["Pulse"] | null }>(
  broker: string,
  path: string,
  body: unknown,
): Promise<T> {
  const asked = {
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" },
    method: "POST",
  };
  const answer = await call<T>(addressOf(ofBroker(broker, path)), asked, LONGEST_ACT_SECONDS);
  if (answer.pulse) hearNumbers(broker, answer.pulse);
  return answer;
}

/** The path of a resource of one broker. */
export const ofBroker = (connectionId: string, path: string) =>
  `brokers/${encodeURIComponent(connectionId)}/${path}`;
