import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import { Asking, type Preview } from "./Asking";

afterEach(cleanup);

function asked(found: Preview) {
  const act = vi.fn().mockResolvedValue("Done.");
  render(
    <ChakraProvider value={defaultSystem}>
      <QueryClientProvider client={new QueryClient()}>
        <Asking act={act} action="Discard all" preview={() => Promise.resolve(found)} />
      </QueryClientProvider>
    </ChakraProvider>,
  );
  fireEvent.click(screen.getByRole("button", { name: "Discard all" }));
  return act;
}

const last = (name: string) => screen.getAllByRole<HTMLButtonElement>("button", { name }).at(-1);

test("whoever acts on an unknown number types what is known of it", async () => {
  asked({ isAtLeast: true, number: 12, words: "At least 12 dead letters." });

  const typed = await screen.findByRole("textbox");
  expect(last("Discard all")?.disabled).toBe(true);
  fireEvent.change(typed, { target: { value: "12" } });
  await waitFor(() => expect(last("Discard all")?.disabled).toBe(false));
});

test("whoever acts on a few that were counted types nothing", async () => {
  asked({ isAtLeast: false, number: 12, words: "12 dead letters." });

  await screen.findByText("12 dead letters.");
  await waitFor(() => expect(last("Discard all")?.disabled).toBe(false));
  expect(screen.queryByRole("textbox")).toBeNull();
});
