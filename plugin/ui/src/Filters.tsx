import { Button, Flex } from "@chakra-ui/react";
import { type ReactNode, useId, useState } from "react";
import { useAddress } from "./address";

/** The fields of a filter. Where the window is narrow they stand behind a button, so that rows are seen first. */
export function Filters({ children, names }: { children: ReactNode; names: string[] }) {
  const address = useAddress();
  const [open, setOpen] = useState(false);
  const id = useId();
  const set = names.filter((name) => address.of(name) !== "").length;
  return (
    <>
      <Button
        aria-controls={id}
        aria-expanded={open}
        display={{ base: "inline-flex", md: "none" }}
        mb={3}
        onClick={() => setOpen(!open)}
        size="xs"
        variant="outline"
      >
        Filters{set > 0 && ` (${set} set)`}
      </Button>
      <Flex
        align="end"
        display={{ base: open ? "flex" : "none", md: "flex" }}
        gap={2}
        id={id}
        mb={3}
        wrap="wrap"
      >
        {children}
      </Flex>
    </>
  );
}
