import { Button, Flex } from "@chakra-ui/react";
import { type ReactNode, use, useId, useState } from "react";
import { useAddress } from "./address";
import { Given } from "./parts";
import { TEXT } from "./texts";

/** The fields of a filter. Where the window is narrow they stand behind a button, so that rows are seen first. */
export function Filters({
  children,
  margin = 3,
  names,
}: {
  children: ReactNode;
  /** Below it; none in the head of a section. */
  margin?: number;
  names: string[];
}) {
  const address = useAddress();
  const given = use(Given);
  const fields = names.filter((name) => !given.includes(name));
  const [open, setOpen] = useState(false);
  const id = useId();
  const set = fields.filter((name) => address.of(name) !== "").length;
  if (fields.length === 0) return null;
  return (
    <>
      <Button
        aria-controls={id}
        aria-expanded={open}
        display={{ base: "inline-flex", md: "none" }}
        mb={margin}
        onClick={() => setOpen(!open)}
        size="xs"
        variant="outline"
      >
        {TEXT.filters}
        {set > 0 && TEXT.someSet(set)}
      </Button>
      <Flex
        align="end"
        display={{ base: open ? "flex" : "none", md: "flex" }}
        gap={2}
        id={id}
        mb={margin}
        wrap="wrap"
      >
        {children}
      </Flex>
    </>
  );
}
