import { Button, CloseButton, Dialog, Portal, Text } from "@chakra-ui/react";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { Failure } from "./api";

export type Told = (words: string) => void;

type Props = {
  /** The name of the button, and of the dialog. */
  action: string;
  /** Does it, and says what came of it. `tell` shows how far it is. */
  act: (tell: Told) => Promise<string>;
  /** What is to be known before; may hold fields. */
  children?: ReactNode;
  disabled?: boolean;
  /** After an answer was read, if something may have changed. */
  done?: () => void;
  /** Asked when the dialog opens: what the action would be about. */
  preview?: () => Promise<string>;
  serious?: boolean;
};

/** A button whose action asks first, and whose answer stays until it was read. */
export function Asking({ act, action, children, disabled = false, done, preview, serious = false }: Props) {
  const [open, setOpen] = useState(false);
  const [busy, setBusy] = useState(false);
  const [known, setKnown] = useState<string>();
  const [answer, setAnswer] = useState<{ failed: boolean; words: string }>();
  const cancel = useRef<HTMLButtonElement>(null);
  const trigger = useRef<HTMLButtonElement>(null);
  const acted = useRef(false);

  // The button that had the focus is gone with the question.
  useEffect(() => {
    if (answer) cancel.current?.focus();
  }, [answer]);

  const attempt = async (what: () => Promise<string>, keep: (words: string, failed: boolean) => void) => {
    setBusy(true);
    try {
      keep(await what(), false);
    } catch (error) {
      keep(error instanceof Failure ? error.message : "The page made an error. Load it again.", true);
    } finally {
      setBusy(false);
    }
  };
  const change = (next: boolean) => {
    if (busy) return;
    if (next) acted.current = false;
    setOpen(next);
    setKnown(undefined);
    if (next && preview) void attempt(preview, setKnown);
    if (!next && answer) {
      setAnswer(undefined);
      done?.();
    }
  };

  return (
    <Dialog.Root
      // What was done may take the button away, or switch it off: the heading above it stays.
      finalFocusEl={() =>
        (acted.current && trigger.current?.closest("section")?.querySelector("h2")) || trigger.current
      }
      initialFocusEl={() => cancel.current}
      onOpenChange={(event) => change(event.open)}
      open={open}
      role="alertdialog"
    >
      <Dialog.Trigger asChild>
        <Button
          colorPalette={serious ? "red" : "brand"}
          disabled={disabled}
          ref={trigger}
          size="xs"
          variant={serious ? "outline" : "solid"}
        >
          {action}
        </Button>
      </Dialog.Trigger>
      <Portal>
        <Dialog.Backdrop />
        <Dialog.Positioner>
          <Dialog.Content>
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
                    {known ?? (busy ? "…" : "")}
                  </Text>
                </>
              )}
            </Dialog.Body>
            <Dialog.Footer>
              <Button disabled={busy} onClick={() => change(false)} ref={cancel} variant="outline">
                {answer ? "Close" : "Cancel"}
              </Button>
              {!answer && (
                <Button
                  colorPalette={serious ? "red" : "brand"}
                  loading={busy}
                  onClick={() =>
                    void attempt(
                      () => act(setKnown),
                      (words, failed) => {
                        acted.current = true;
                        setAnswer({ failed, words });
                      },
                    )
                  }
                >
                  {action}
                </Button>
              )}
            </Dialog.Footer>
            <Dialog.CloseTrigger asChild>
              <CloseButton aria-label="Close" size="sm" />
            </Dialog.CloseTrigger>
          </Dialog.Content>
        </Dialog.Positioner>
      </Portal>
    </Dialog.Root>
  );
}
