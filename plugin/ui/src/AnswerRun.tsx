// A run that waits for an answer is answered.
import { Text, Textarea } from "@chakra-ui/react";
import { useState } from "react";
import { type Schemas, ofBroker, post, refusal } from "./api";
import { Asking } from "./Asking";
import { isJson } from "./format";
import { toldOfAnswer } from "./outcomes";
import { TEXT } from "./texts";

export function AnswerRun({
  broker,
  id,
  keyOfWait,
}: {
  broker: string;
  id: string;
  keyOfWait: string | null;
}) {
  const [text, setText] = useState("");
  return (
    <Asking
      act={async () => {
        if (!isJson(text)) throw refusal("NoJson", TEXT.theAnswerIsNoJson);
        return toldOfAnswer(
          await post<Schemas["Outcome"]>(ofBroker(broker, "messages/answer"), { body: text, message_id: id }),
        );
      }}
      action={TEXT.answer}
    >
      <Text mb={3}>{TEXT.theRunThatWaitsUnderThe(keyOfWait)}</Text>
      <Text as="label" display="block" fontSize="sm">
        {TEXT.answerAsJson}
        <Textarea
          fontFamily="mono"
          fontSize="xs"
          name="answer"
          onChange={(event) => {
            setText(event.target.value);
          }}
          placeholder={'{"approved": true}'}
          rows={5}
          value={text}
        />
      </Text>
    </Asking>
  );
}
