import { QueryClientProvider } from "@tanstack/react-query";
import { act, cleanup, render, screen, waitFor } from "@testing-library/react";
import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { afterEach, expect, test, vi } from "vitest";
import { Failure } from "./api";
import { Age, Answered } from "./Answered";
import { newClient, useAnswer } from "./queries";

afterEach(cleanup);

const client = newClient();
let waiting: { fail: (error: Failure) => void; say: (value: string) => void }[] = [];

afterEach(() => {
  client.clear();
  waiting = [];
});

function Shown({ of }: { of: string }) {
  const ask = () => new Promise<string>((say, fail) => waiting.push({ fail, say }));
  const answer = useAnswer([of], ask);
  return <Answered answer={answer}>{(value) => <p>{value}</p>}</Answered>;
}

const page = (of: string) => (
  <ChakraProvider value={defaultSystem}>
    <QueryClientProvider client={client}>
      <Shown of={of} />
    </QueryClientProvider>
  </ChakraProvider>
);

const isBusy = (value: string) => screen.getByText(value).parentElement?.getAttribute("aria-busy");

test("the answer before stays, marked as old, until the next one is there", async () => {
  const { rerender } = render(page("one"));
  expect(screen.getByRole("status", { name: "Loading" })).toBeTruthy();
  waiting[0]?.say("first");
  await screen.findByText("first");
  rerender(page("two"));
  expect(isBusy("first")).toBe("true");
  waiting[1]?.say("second");
  await screen.findByText("second");
  expect(isBusy("second")).toBe("false");
});

test("after an act the state before is marked as old, until the new one is there", async () => {
  render(page("one"));
  await waitFor(() => expect(waiting).toHaveLength(1));
  waiting[0]?.say("first");
  await screen.findByText("first");
  // As an act does, and Refresh.
  act(() => void client.invalidateQueries());
  await waitFor(() => expect(isBusy("first")).toBe("true"));
  waiting[1]?.say("second");
  await screen.findByText("second");
  expect(isBusy("second")).toBe("false");
});

test("an answer that is asked for again and again is not marked as old meanwhile", async () => {
  render(page("one"));
  await waitFor(() => expect(waiting).toHaveLength(1));
  waiting[0]?.say("first");
  await screen.findByText("first");
  act(() => void client.refetchQueries());
  await waitFor(() => expect(waiting).toHaveLength(2));
  expect(isBusy("first")).toBe("false");
  // Nor is one beside which an error stands, while it is tried again.
  waiting[1]?.fail(new Failure(503, "Gone", "It is gone."));
  await screen.findByRole("alert");
  act(() => void client.refetchQueries());
  await waitFor(() => expect(waiting).toHaveLength(3));
  expect(isBusy("first")).toBe("false");
});

type Timed = { age_seconds?: number; now_at: string };

test("an older answer of another process does not replace a newer one, and tells its age", async () => {
  vi.useFakeTimers({ now: 1_000_000, toFake: ["Date"] });
  const answers: Timed[] = [
    { age_seconds: 8, now_at: "2030-01-05T10:00:00Z" },
    { age_seconds: 60, now_at: "2030-01-05T09:59:00Z" },
    { age_seconds: 0, now_at: "2030-01-05T10:00:30Z" },
    { age_seconds: 0, now_at: "2030-01-05T09:00:00Z" },
    { age_seconds: 0, now_at: "2030-01-05T09:02:00Z" },
  ];
  function Read() {
    const answer = useAnswer<Timed>(["timed"], () => Promise.resolve(answers.shift() as Timed));
    return (
      <Answered answer={answer}>
        {(value) => (
          <p>
            {value.now_at} <Age key={value.age_seconds} readAt={answer.readAt} />
          </p>
        )}
      </Answered>
    );
  }
  const { container } = render(
    <ChakraProvider value={defaultSystem}>
      <QueryClientProvider client={client}>
        <Read />
      </QueryClientProvider>
    </ChakraProvider>,
  );
  const shows = (words: string) =>
    waitFor(() => expect(container.querySelector("p")?.textContent.trim()).toBe(words));
  await shows("2030-01-05T10:00:00Z");
  vi.setSystemTime(1_007_000);
  await act(() => client.refetchQueries());
  await shows("2030-01-05T10:00:00Z 15 s ago");
  await act(() => client.refetchQueries());
  await shows("2030-01-05T10:00:30Z");
  // The database's clock is set back by an hour: the answer before it is dropped once it is too old to be shared.
  await act(() => client.refetchQueries());
  await shows("2030-01-05T10:00:30Z");
  vi.setSystemTime(1_130_000);
  await act(() => client.refetchQueries());
  await shows("2030-01-05T09:02:00Z");
  vi.useRealTimers();
});
