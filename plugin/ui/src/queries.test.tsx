import { QueryClientProvider } from "@tanstack/react-query";
import { cleanup, render, screen } from "@testing-library/react";
import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { afterEach, expect, test } from "vitest";
import { Answered } from "./parts";
import { newClient, useAnswer } from "./queries";

afterEach(cleanup);

const client = newClient();
const waiting: ((value: string) => void)[] = [];

function Shown({ of }: { of: string }) {
  const answer = useAnswer([of], () => new Promise<string>((resolve) => waiting.push(resolve)));
  return <Answered answer={answer}>{(value) => <p>{value}</p>}</Answered>;
}

const page = (of: string) => (
  <ChakraProvider value={defaultSystem}>
    <QueryClientProvider client={client}>
      <Shown of={of} />
    </QueryClientProvider>
  </ChakraProvider>
);

test("the answer before stays, marked as old, until the next one is there", async () => {
  const { rerender } = render(page("one"));
  expect(screen.getByRole("status", { name: "Loading" })).toBeTruthy();
  waiting[0]?.("first");
  await screen.findByText("first");
  rerender(page("two"));
  expect(screen.getByText("first").parentElement?.getAttribute("aria-busy")).toBe("true");
  waiting[1]?.("second");
  await screen.findByText("second");
  expect(screen.getByText("second").parentElement?.getAttribute("aria-busy")).toBe("false");
});
