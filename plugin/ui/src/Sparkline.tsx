import { instant, span } from "./format";
import { useZone } from "./zone";

const HIGH = 18;
const WIDE = 4;

/** Where an hour of a day begins. */
export const hourOf = (fromAt: string, hour: number) =>
  new Date(Date.parse(fromAt) + hour * 3_600_000).toISOString();

/** A bar for each hour of the day in which something was released; a screen reader hears the numbers. */
export function Sparkline({
  byHour,
  fromAt,
  label,
}: {
  byHour: (number | null)[];
  fromAt: string;
  /** Its name, with the numbers in it. */
  label: (numbers: string) => string;
}) {
  const zone = useZone();
  const most = Math.max(...byHour.map((one) => one ?? 0), 0.001);
  const told = byHour.flatMap((late, hour) =>
    late === null ? [] : [`${instant(hourOf(fromAt, hour), zone).slice(11, 16)} ${span(late)}`],
  );
  if (told.length === 0) return "–";
  return (
    <svg aria-label={label(told.join(", "))} height={HIGH} role="img" width={byHour.length * WIDE}>
      <title>{told.join(", ")}</title>
      {byHour.map((late, hour) => {
        const high = late === null ? 0 : Math.max(1, (late / most) * HIGH);
        return (
          late !== null && (
            <rect
              fill="currentColor"
              height={high}
              key={hourOf(fromAt, hour)}
              width={WIDE - 1}
              x={hour * WIDE}
              y={HIGH - high}
            />
          )
        );
      })}
    </svg>
  );
}
