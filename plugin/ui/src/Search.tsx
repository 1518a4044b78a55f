import { Box, Input } from "@chakra-ui/react";
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { useAddress } from "./address";
import type { Schemas } from "./api";
import { questionOf, useBroker } from "./queries";
import { TEXT } from "./texts";

const MESSAGE_ID = /^[0-9a-f]{44}$/;

/** Opens the place that was typed: a message by its id, a topic, a group; anything else is the beginning of a key. */
export function Search({ broker }: { broker: string }) {
  const address = useAddress();
  const field = useRef<HTMLInputElement>(null);
  const [isUsed, setIsUsed] = useState(false);
  const client = useQueryClient();
  const names = useBroker(broker, "names", {}, undefined, isUsed).data;
  useEffect(() => {
    const take = (event: KeyboardEvent) => {
      if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "k") return;
      // Before Airflow's own search of DAGs: on this page, messages are looked for.
      event.preventDefault();
      event.stopImmediatePropagation();
      field.current?.focus();
      field.current?.select();
    };
    addEventListener("keydown", take, { capture: true });
    return () => removeEventListener("keydown", take, { capture: true });
  }, []);
  const go = (typed: string, known?: Schemas["Names"]) => {
    if (MESSAGE_ID.test(typed)) address.open("message", { id: typed });
    else if (known?.topics.includes(typed)) address.open("topic", { topic: typed });
    else if (known?.groups.includes(typed)) address.open("group", { group: typed });
    else address.open("messages", { key: typed });
    if (!field.current) return;
    field.current.value = "";
    field.current.blur();
  };
  // The names tell a topic from a key, and may be on their way. Without them it is taken for a key.
  const look = async (typed: string) => {
    const [queryKey, ask] = questionOf(broker, "names");
    const asked = client.fetchQuery({ queryFn: ({ signal }) => ask(signal), queryKey, staleTime: 60_000 });
    const from = window.location.search;
    const known = await asked.catch(() => undefined);
    // A user who has gone to another view meanwhile stays there.
    if (window.location.search === from) go(typed, known);
  };
  return (
    <Box role="search" width={{ base: "100%", md: "20rem" }}>
      <Input
        aria-label={TEXT.search}
        list="duewheel-search"
        name="search"
        onChange={(event) => {
          const typed = event.target.value.trim();
          if (MESSAGE_ID.test(typed)) go(typed);
        }}
        onFocus={() => setIsUsed(true)}
        onKeyDown={(event) => {
          const typed = event.currentTarget.value.trim();
          if (event.key === "Enter" && typed !== "") void look(typed);
        }}
        placeholder={TEXT.searchHint}
        ref={field}
        size="sm"
      />
      <datalist id="duewheel-search">
        {[...(names?.topics ?? []), ...(names?.groups ?? [])].map((name) => (
          <option key={name} value={name} />
        ))}
      </datalist>
    </Box>
  );
}
