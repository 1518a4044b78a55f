import { Box, Button, Flex, Tag } from "@chakra-ui/react";
import { type ReactNode, use, useId, useState } from "react";
import { useAddress } from "./address";
import { instant } from "./format";
import { Given } from "./place";
import { TEXT } from "./texts";
import { isInstant, useZone } from "./zone";

/** The fields of a filter, and a pill for each that is set. Where the window is narrow they stand behind a button, so that rows are seen first. */
export function Filters({
  children,
  margin = 3,
  names,
}: {
  children: ReactNode;
  /** Below it; none in the head of a section. */
  margin?: number;
  /** The names of the values in the address, with their words. */
  names: Record<string, string>;
}) {
  const address = useAddress();
  const given = use(Given);
  const fields = Object.keys(names).filter((name) => !given.includes(name));
  const [open, setOpen] = useState(false);
  const id = useId();
  const zone = useZone();
  const set = fields.filter((name) => address.of(name) !== "");
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
        {set.length > 0 && TEXT.someSet(set.length)}
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
      {set.length > 0 && (
        <Flex aria-label={TEXT.filtersThatAreSet} gap={2} mb={margin} role="group" wrap="wrap">
          {set.map((name) => (
            <Tag.Root key={name} maxW="100%" size="lg" variant="surface">
              <Tag.Label>
                {names[name]}:{" "}
                {isInstant(address.of(name)) ? instant(address.of(name), zone) : address.of(name)}
              </Tag.Label>
              <Tag.EndElement>
                <Tag.CloseTrigger
                  aria-label={TEXT.removeTheFilter(names[name] ?? name)}
                  onClick={() => address.set({ after: null, [name]: null })}
                >
                  <Box aria-hidden="true" as="span" lineHeight="1">
                    ×
                  </Box>
                </Tag.CloseTrigger>
              </Tag.EndElement>
            </Tag.Root>
          ))}
          {set.length > 1 && (
            <Button
              onClick={() =>
                address.set({ after: null, ...Object.fromEntries(set.map((name) => [name, null])) })
              }
              size="xs"
              variant="ghost"
            >
              {TEXT.removeAllFilters}
            </Button>
          )}
        </Flex>
      )}
    </>
  );
}
