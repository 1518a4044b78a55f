import { Box, Input, NativeSelect, Text } from "@chakra-ui/react";
import { use, useEffect, useState } from "react";
import { BrokerId } from "./place";
import { useBroker } from "./queries";
import { fromWall, useZone } from "./zone";
import { TEXT } from "./texts";

const DELAYS: [string, number][] = [
  [TEXT.in10Minutes, 600],
  [TEXT.in1Hour, 3_600],
  [TEXT.in6Hours, 21_600],
  [TEXT.in1Day, 86_400],
];

/** What it is before anything is chosen. */
export const IN_AN_HOUR = { delay_seconds: 3_600 };

/** An instant to move messages to: a delay from now by the database's clock, or an instant in the page's time zone.
 * Once it is no longer seen, what was chosen in it counts no more. `choose` is the same each time. */
export function InstantField({ choose }: { choose: (to: object) => void }) {
  const [at, setAt] = useState("");
  const [delay, setDelay] = useState(IN_AN_HOUR);
  const zone = useZone();
  const clock = useBroker(use(BrokerId), "pulse");
  const [isPast, setIsPast] = useState(false);
  const isBeforeNow = (instant: string) =>
    clock.data !== undefined &&
    Date.parse(instant) - Date.parse(clock.data.now_at) < Date.now() - clock.readAt;
  useEffect(() => () => choose(IN_AN_HOUR), [choose]);
  return (
    <Box display="grid" gap={3}>
      <Text as="label" fontSize="sm">
        {TEXT.delay}
        <NativeSelect.Root disabled={at !== ""}>
          <NativeSelect.Field
            name="delay"
            onChange={(event) => {
              const chosen = { delay_seconds: Number(event.target.value) };
              setDelay(chosen);
              choose(chosen);
            }}
            value={delay.delay_seconds}
          >
            {DELAYS.map(([words, seconds]) => (
              <option key={seconds} value={seconds}>
                {words}
              </option>
            ))}
          </NativeSelect.Field>
          <NativeSelect.Indicator aria-hidden="true" />
        </NativeSelect.Root>
      </Text>
      <Text as="label" fontSize="sm">
        {TEXT.orAtThisInstantIn}
        {zone}
        <Input
          name="deliver_at"
          // An incomplete instant has no value. It is sent as it is, for the API to refuse.
          onBlur={(event) => {
            if (event.target.validity.badInput) choose({ deliver_at: "incomplete" });
          }}
          onChange={(event) => {
            setAt(event.target.value);
            const chosen = fromWall(event.target.value, zone);
            setIsPast(chosen !== undefined && isBeforeNow(chosen));
            choose(chosen === undefined ? delay : { deliver_at: chosen });
          }}
          step="1"
          type="datetime-local"
          value={at}
        />
      </Text>
      {isPast && (
        <Text color="fg.warning" fontSize="sm" role="status">
          {TEXT.thisInstantIsPastTheyAre}
        </Text>
      )}
    </Box>
  );
}
