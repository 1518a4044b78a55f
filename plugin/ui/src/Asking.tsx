import { Button, CloseButton, Dialog, Input, Portal, Text } from "@chakra-ui/react";
import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, use, useEffect, useRef, useState } from "react";
import { useBlocker } from "react-router-dom";
import { Failure } from "./api";
import { IsOld } from "./Answered";
import { FIELDS } from "./parts";
import { TEXT } from "./texts";

export type Told = (words: string) => void;

/** What a preview has counted; `at` is an instant of `performance.now()`. */
export type Counted = { at: number; number: number };

/** How a long action reports its progress, and learns that it is to stop. */
export type Course = {
  /** How many the preview has counted, and how long ago. */
  previewed?: Counted;
  isStopped: () => boolean;
  /** Waits so long, or until it is to stop. */
  pause: (seconds: number) => Promise<void>;
  tell: Told;
};

/** What an action would affect. Whoever acts on more than a thousand types how many. */
export type Preview = { number: number; words: string };

const TYPED_ABOVE = 1_000;

type Props = {
  /** The name of the button, and of the dialog. */
  action: string;
  /** Carries the action out and returns a sentence on the result. After its first report of progress it can be stopped.
   * */
  act: (course: Course) => Promise<string>;
  /** The text of the question; may contain fields. */
  children?: ReactNode;
  disabled?: boolean;
  /** Called after the answer was read, if something may have changed; the page then asks for everything anew. */
  done?: () => void;
  /** Called when the dialog opens, and again when `previewOf` changes: describes what the action would affect. The
   * answer is wanted until the dialog closes. */
  preview?: (isWanted: () => boolean) => Promise<Preview>;
  previewOf?: string;
  /** One of many such buttons, as in each row of a table: only the dialog is coloured. */
  quiet?: boolean;
  serious?: boolean;
};

const pause = (seconds: number, signal: AbortSignal) =>
  new Promise<void>((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });

/** Go to a field that has come, unless another one is being filled. */
function focusUnlessTyping(field: HTMLElement | null) {
  if (!document.activeElement?.matches("input, select, textarea")) field?.focus();
}

/** Keeps the view while it is shown: Back would take the outcome away, and leave the action without a way to stop it. */
function StaysHere() {
  const blocker = useBlocker(true);
  useEffect(() => {
    if (blocker.state === "blocked") blocker.reset();
  }, [blocker]);
  return null;
}

/** A button that asks before it acts, and shows the answer until it was read. */
export function Asking({
  act,
  action,
  children,
  disabled = false,
  done,
  preview,
  previewOf = "",
  quiet = false,
  serious = false,
}: Props) {
  const client = useQueryClient();
  const isOld = use(IsOld);
  const [open, setOpen] = useState(false);
  const [busy, setBusy] = useState(false);
  const [acting, setActing] = useState(false);
  const [known, setKnown] = useState<string>();
  // What the preview has said, and of which question.
  const [found, setFound] = useState<
    Counted & { again: boolean; failed: boolean; of: string; words: string }
  >();
  const [typed, setTyped] = useState("");
  const [course, setCourse] = useState<"going" | "stopping">();
  const [answer, setAnswer] = useState<{ failed: boolean; words: string }>();
  const cancel = useRef<HTMLButtonElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const trigger = useRef<HTMLButtonElement>(null);
  const acted = useRef(false);
  const heading = useRef<HTMLElement>(null);
  const round = useRef(0);
  const stopping = useRef(new AbortController());

  // The button that had the focus has gone with the question.
  useEffect(() => {
    if (answer) cancel.current?.focus();
  }, [answer]);

  // Closing the tab ends its action.
  useEffect(() => {
    if (!course) return;
    const ask = (event: BeforeUnloadEvent) => event.preventDefault();
    window.addEventListener("beforeunload", ask);
    return () => window.removeEventListener("beforeunload", ask);
  }, [course]);

  const attempt = async (
    what: () => Promise<string>,
    keep: (words: string, failed: boolean, again: boolean) => void,
    acts = false,
  ) => {
    const mine = ++round.current;
    setBusy(true);
    let [words, failed, again] = ["", false, false];
    try {
      words = await what();
    } catch (error) {
      failed = true;
      // The server refuses this question each time.
      again = !(error instanceof Failure && error.status === 422);
      words = error instanceof Failure ? error.message : TEXT.thePageHasFailed;
      if (acts && !(error instanceof Failure && error.wasCarriedOut === false))
        words += `\n${TEXT.whetherItWasDone}`;
    }
    if (round.current !== mine) return;
    setBusy(false);
    keep(words, failed, again);
  };
  const start = () => {
    const { signal } = (stopping.current = new AbortController());
    setActing(true);
    const tell = (words: string) => {
      setKnown(words);
      setCourse((before) => before ?? "going");
    };
    void attempt(
      () =>
        act({
          ...(found && !found.failed ? { previewed: found } : {}),
          isStopped: () => signal.aborted,
          pause: (seconds) => pause(seconds, signal),
          tell,
        }),
      (words, failed) => {
        acted.current = true;
        setActing(false);
        setCourse(undefined);
        setAnswer({ failed, words });
      },
      true,
    );
  };
  const stop = () => {
    stopping.current.abort();
    setCourse("stopping");
  };
  const look = () => {
    setTyped("");
    if (!preview) return;
    const mine = round.current + 1;
    const at = performance.now();
    let number = 0;
    const words = async () => {
      const said = await preview(() => round.current === mine);
      number = said.number;
      return said.words;
    };
    void attempt(words, (said, failed, again) =>
      setFound({ again, at, failed, number, of: previewOf, words: said }),
    );
  };
  const askAgain = useRef(look);
  useEffect(() => {
    askAgain.current = look;
  });
  // The dialog has opened, or its question has changed and nobody types any more.
  useEffect(() => {
    if (!open) return;
    const timer = setTimeout(() => askAgain.current(), 200);
    return () => clearTimeout(timer);
  }, [open, previewOf]);

  const change = (next: boolean) => {
    if (acting) return;
    if (next) {
      acted.current = false;
      heading.current = trigger.current?.closest("section")?.querySelector("h2") ?? null;
    }
    // From here on, the answer to the question asked at opening comes too late.
    round.current += 1;
    setBusy(false);
    setOpen(next);
    setKnown(undefined);
    setFound(undefined);
    if (!next && answer) {
      setAnswer(undefined);
      done?.();
      void client.invalidateQueries();
    }
  };

  const isFound = found?.of === previewOf;
  const number = isFound ? found.number : 0;
  const isUntold = preview !== undefined && !(isFound && !found.failed) && !acting;
  return (
    <Dialog.Root
      // The action may remove or disable the button, so the focus goes to the heading above it.
      finalFocusEl={() => (acted.current && heading.current) || trigger.current}
      // A text to be written comes first.
      initialFocusEl={() => content.current?.querySelector("textarea") ?? cancel.current}
      onOpenChange={(event) => change(event.open)}
      open={open}
      role="alertdialog"
    >
      {acting && <StaysHere />}
      <Dialog.Trigger asChild>
        <Button
          colorPalette={quiet ? "gray" : serious ? "red" : "brand"}
          disabled={disabled || isOld}
          ref={trigger}
          size="xs"
          variant={quiet || serious ? "outline" : "solid"}
        >
          {action}
        </Button>
      </Dialog.Trigger>
      <Portal>
        <Dialog.Backdrop />
        <Dialog.Positioner>
          <Dialog.Content css={FIELDS} ref={content}>
            <Dialog.Header>
              <Dialog.Title>{action}</Dialog.Title>
            </Dialog.Header>
            <Dialog.Body>
              {answer ? (
                <Text color={answer.failed ? "fg.error" : "fg"} role="status" whiteSpace="pre-line">
                  {answer.words}
                </Text>
              ) : (
                <>
                  {children}
                  <Text mt={2} role="status" whiteSpace="pre-line">
                    {known ?? (isFound ? found.words : busy || isUntold ? "…" : "")}
                  </Text>
                  {isFound && found.again && !acting && (
                    <Button
                      loading={busy}
                      mt={2}
                      onClick={() => {
                        cancel.current?.focus();
                        look();
                      }}
                      size="xs"
                      variant="outline"
                    >
                      {TEXT.tryAgain}
                    </Button>
                  )}
                  {number > TYPED_ABOVE && !acting && (
                    <Text as="label" display="block" fontSize="sm" mt={2}>
                      {TEXT.typeANumber}
                      {number}
                      {TEXT.toConfirm}
                      <Input
                        inputMode="numeric"
                        name="number"
                        ref={focusUnlessTyping}
                        onChange={(event) => setTyped(event.target.value)}
                        value={typed}
                      />
                    </Text>
                  )}
                </>
              )}
            </Dialog.Body>
            <Dialog.Footer>
              <Button
                disabled={acting && course !== "going"}
                onClick={course ? stop : () => change(false)}
                ref={cancel}
                variant="outline"
              >
                {answer ? TEXT.close : course ? TEXT.stop : TEXT.cancel}
              </Button>
              {!answer && (
                <Button
                  colorPalette={serious ? "red" : "brand"}
                  disabled={
                    isUntold || (number > TYPED_ABOVE && typed.replaceAll(/[ ,.]/g, "") !== `${number}`)
                  }
                  loading={busy}
                  onClick={start}
                >
                  {action}
                </Button>
              )}
            </Dialog.Footer>
            <Dialog.CloseTrigger asChild>
              <CloseButton aria-label={TEXT.close} disabled={acting} size="sm" />
            </Dialog.CloseTrigger>
          </Dialog.Content>
        </Dialog.Positioner>
      </Portal>
    </Dialog.Root>
  );
}
