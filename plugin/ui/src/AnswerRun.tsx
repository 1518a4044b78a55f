// A run that waits for an answer is answered.
import { Text } from "@chakra-ui/react";
import { useState } from "react";
import { type Schemas, post, refusal } from "./api";
import { Asking } from "./Asking";
import { isJson } from "./format";
import { toldOfAnswer } from "./outcomes";
import { TextArea } from "./parts";
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
          await post<Schemas["Answered"]>(broker, "messages/answer", { body: text, message_id: id }),
        );
      }}
      action={TEXT.answer}
    >
      <Text mb={3}>{TEXT.theRunThatWaitsUnderThe(keyOfWait)}</Text>
      <TextArea
        label={TEXT.answerAsJson}
        name="answer"
        onText={setText}
        placeholder={'{"approved": true}'}
        rows={5}
        value={text}
      />
    </Asking>
  );
}
