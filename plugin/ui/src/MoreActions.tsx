// The actions of a row beyond the commonest one, behind a button.
import { Button, Flex } from "@chakra-ui/react";
import { type ReactNode, useId, useState } from "react";
import { TEXT } from "./texts";

/** They stand in the row and in no menu above it, so a dialog that one opens outlives a click elsewhere. */
export function MoreActions({ children, of }: { children: ReactNode; of: string }) {
  const [open, setOpen] = useState(false);
  const id = useId();
  return (
    <>
      <Button
        aria-controls={id}
        aria-expanded={open}
        aria-label={TEXT.moreActions(of)}
        onClick={() => setOpen(!open)}
        size="xs"
        variant="ghost"
      >
        ⋯
      </Button>
      <Flex gap={1} hidden={!open} id={id}>
        {open && children}
      </Flex>
    </>
  );
}
