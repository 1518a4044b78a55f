import { cleanup, render, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { createBrowserRouter, RouterProvider } from "react-router-dom";
import { afterEach, expect, test } from "vitest";
import { useAddress } from "./address";

afterEach(cleanup);

function TwoFields() {
  const address = useAddress();
  // Both before the router has rendered the first.
  const fill = async () => {
    address.set({ topic: "orders" });
    await Promise.resolve();
    address.set({ key: "7" });
  };
  return (
    <button onClick={() => void fill()} type="button">
      {address.of("topic")} {address.of("key")}
    </button>
  );
}

test("a field that is filled before the page shows the one before it keeps that one", async () => {
  window.history.replaceState(null, "", "/?broker=shop");
  render(<RouterProvider router={createBrowserRouter([{ element: <TwoFields />, path: "/" }])} />);
  await userEvent.click(screen.getByRole("button"));
  await screen.findByText("orders 7");
  expect(window.location.search).toBe("?broker=shop&topic=orders&key=7");
});
