// The fields of filters, whose values the address has.
import { Box, Flex, Input, Text } from "@chakra-ui/react";
import { type ReactNode, use, useEffect, useRef } from "react";
import { useAddress } from "./address";
import { shortened } from "./format";
import { BrokerId, Given } from "./place";
import { useBroker } from "./queries";
import { TEXT } from "./texts";
import { fromWall, isInstant, toWall, useZone } from "./zone";

/** A field of a filter below its label. */
export const Labelled = ({ children, label }: { children: ReactNode; label: string }) => (
  <Box as="label" fontSize="xs">
    <Text as="span" color="fg.muted" display="block">
      {label}
    </Text>
    {children}
  </Box>
);

/** A field of a filter: a typed value counts once the field is left or Enter is pressed. */
export function Filter({
  label,
  name,
  placeholder,
  width = "12rem",
}: {
  label: string;
  name: string;
  placeholder?: string;
  width?: string;
}) {
  const address = useAddress();
  const said = address.of(name);
  const broker = use(BrokerId);
  const isName = name === "topic" || name === "group";
  const names = useBroker(broker, "names", {}, undefined, isName && broker !== "").data;
  const isGiven = use(Given).includes(name);
  const field = useRef<HTMLInputElement>(null);
  // Another address is another value; the field itself stays, and with it the focus.
  useEffect(() => {
    if (field.current) field.current.value = said;
  }, [said]);
  if (isGiven) return null;
  return (
    <Labelled label={label}>
      <Input
        defaultValue={said}
        list={isName ? `duewheel-${name}s` : undefined}
        name={name}
        onBlur={(event) => {
          if (event.target.value !== said) address.set({ after: null, [name]: event.target.value });
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter") address.set({ after: null, [name]: event.currentTarget.value });
        }}
        placeholder={placeholder ?? ""}
        ref={field}
        size="sm"
        width={width}
      />
      {isName && (
        <datalist id={`duewheel-${name}s`}>
          {(name === "topic" ? names?.topics : names?.groups)?.map((one) => (
            <option key={one} value={one} />
          ))}
        </datalist>
      )}
    </Labelled>
  );
}

/** A field of a filter for an instant, which the address has in UTC. A text there that is none is an error. */
export function InstantFilter({ label, name }: { label: string; name: string }) {
  const address = useAddress();
  const zone = useZone();
  const said = address.of(name);
  const wrong = said !== "" && !isInstant(said);
  const value = said === "" || wrong ? "" : toWall(said, zone);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (field.current) field.current.value = value;
  }, [value]);
  const take = (typed: string) => address.set({ after: null, [name]: fromWall(typed, zone) ?? null });
  return (
    <Labelled label={label}>
      <Input
        aria-invalid={wrong}
        defaultValue={value}
        name={name}
        onBlur={(event) => {
          // An incomplete instant has no value. The field shows that it does not count.
          if (event.target.validity.badInput) event.target.reportValidity();
          else if (event.target.value !== value) take(event.target.value);
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.currentTarget.validity.badInput)
            take(event.currentTarget.value);
        }}
        ref={field}
        size="sm"
        step="1"
        type="datetime-local"
        width="13rem"
      />
      {wrong && (
        <Flex color="fg.error" gap={2} role="alert">
          “{shortened(said)}
          {TEXT.isNoInstantWithItsTime}
          <button onClick={() => address.set({ after: null, [name]: null })} type="button">
            <u>{TEXT.clear}</u>
          </button>
        </Flex>
      )}
    </Labelled>
  );
}
