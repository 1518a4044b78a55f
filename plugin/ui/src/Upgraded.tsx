// The notice in a tab that was opened before an upgrade of the API server.
import { Alert, Button } from "@chakra-ui/react";
import { Component, type ReactNode, useSyncExternalStore } from "react";
import { isUpgraded, onUpgrade } from "./api";
import { TEXT } from "./texts";

function LoadAgain({ children }: { children: ReactNode }) {
  return (
    <Alert.Root mb={4} role="alert" status="warning">
      <Alert.Indicator aria-hidden="true" />
      <Alert.Content>
        <Alert.Description>{children}</Alert.Description>
      </Alert.Content>
      <Button onClick={() => location.reload()} size="xs" variant="outline">
        {TEXT.loadAgain}
      </Button>
    </Alert.Root>
  );
}

export function Upgraded() {
  return useSyncExternalStore(onUpgrade, isUpgraded) ? (
    <LoadAgain>{TEXT.duewheelWasUpgradedSinceThisPage}</LoadAgain>
  ) : null;
}

/** Keeps an error in one view, such as an answer of another version, from breaking the rest of the page. */
export class Guarded extends Component<{ children: ReactNode }, { failed: boolean }> {
  override state = { failed: false };

  static getDerivedStateFromError() {
    return { failed: true };
  }

  override render() {
    if (!this.state.failed) return this.props.children;
    return <LoadAgain>{TEXT.thisViewCannotBeShownIf}</LoadAgain>;
  }
}
