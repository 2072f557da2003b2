// A conversation's messages and tokens, and the text of a running answer, as edgedecode/text/transcript.py,
// stop_strings.py and sessions/chunks.py.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decoding/verify.h"
#include "text/token_text.h"
#include "text/tokenizer.h"
#include "text/turns.h"

namespace edgedecode {

// Cuts a stream of text at the first stop string, and holds back a tail that may begin one.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops);
  const std::string& matched() const { return matched_; }  // the stop string that ended the text
  std::string push(const std::string& text);
  std::string flush();

 private:
  size_t find(const std::string& text, std::string* found) const;

  std::vector<std::string> stops_;  // shorter ones first
  std::string held_, matched_;
};

// The text of a running answer: tokens in, complete characters out, up to a stop string.
class Reply {
 public:
  Reply(const Tokenizer& tokenizer, std::vector<std::string> stops) : words_(tokenizer), stops_(std::move(stops)) {}
  const std::string& matched() const { return stops_.matched(); }
  const std::string& text() const { return text_; }
  // Adds a round's tokens up to the one that completes a stop string, whose number `taken` gets.
  std::string say(const Ids& tokens, size_t* taken);
  std::string rest();

 private:
  TokenText words_;
  StopStrings stops_;
  std::string text_;
};

std::vector<Message> with(std::vector<Message> messages, const Message& message);

// The tokens up to the assistant's header, and those of the answer so far.
struct Turn {
  std::vector<Message> before;
  std::optional<Message> message;  // none: a bare prompt, which is not part of the conversation
  Ids tokens, reply;
  int dropped = 0;  // oldest turns left out of `before`
};

// If the old rendering is a prefix of the new one, a turn encodes only the new text, so that generated ids are kept.
class Transcript {
 public:
  Transcript(const Tokenizer* tokenizer, const Turns* turns, std::vector<Message> messages)
      : tokens(std::make_shared<Ids>()), tokenizer_(tokenizer), turns_(turns), messages_(std::move(messages)) {}
  const std::vector<Message>& messages() const { return messages_; }
  // A message's turn; the oldest turns are left out if less than `room` tokens of the context would be left.
  Turn open(const Message& message, int context, int room) const;
  // The running turn without the oldest turns, so that its answer can go on; none if it still cannot.
  std::optional<Turn> shorter(const Turn& turn, int context) const;
  void begin(const Turn& turn);
  // Records an answer's text; empty: the messages are those from before it.
  void end(const Turn& turn, const std::string& text, const std::set<int32_t>& ends);
  // Keeps the first turns.
  void rewind(size_t turns);
  size_t replied() const { return tokens->size() - prompt_tokens_; }

  std::shared_ptr<Ids> tokens;  // what the model sees; replaced with each turn

 private:
  Turn plain(const Message& message) const;
  Turn shortened(const std::vector<Message>& before, const Message& message, int most) const;

  const Tokenizer* tokenizer_;
  const Turns* turns_;
  std::vector<Message> messages_;
  std::optional<std::string> rendered_;  // the text of exactly the first `rendered_tokens_` tokens
  size_t rendered_tokens_ = 0, prompt_tokens_ = 0;
  std::string prompt_;
};

}  // namespace edgedecode
