#include "transcript.h"

#include <algorithm>

#include "errors.h"

namespace edgedecode {
namespace {

constexpr double kKeptShare = 0.6;  // of the context that is kept at most when turns are dropped

// Where each turn begins: a user's message and all up to the next one. Leading system messages belong to no turn.
std::vector<size_t> turn_starts(const std::vector<Message>& messages) {
  std::vector<size_t> found;
  size_t head = 0;
  while (head < messages.size() && messages[head].role == "system") ++head;
  for (size_t place = head; place < messages.size(); ++place)
    if (place == head || messages[place].role == "user") found.push_back(place);
  return found;
}

}  // namespace

std::vector<Message> with(std::vector<Message> messages, const Message& message) {
  messages.push_back(message);
  return messages;
}

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_)
    if (stop.empty()) throw input_error("a stop string cannot be empty: use a string of one character or more");
  std::stable_sort(stops_.begin(), stops_.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
}

size_t StopStrings::find(const std::string& text, std::string* found) const {
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t place = text.find(stop);
    if (place < first) first = place, *found = stop;
  }
  return first;
}

std::string StopStrings::push(const std::string& more) {
  if (!matched_.empty() || more.empty()) return "";
  const std::string text = held_ + more;
  std::string found;
  const size_t place = find(text, &found), end = std::min(place, text.size());
  const size_t longest = stops_.empty() ? 0 : stops_.back().size();
  for (size_t start = text.size() + 1 > longest ? text.size() + 1 - longest : 0; start < end; ++start) {
    const size_t tail = text.size() - start;  // it may begin a stop string that is longer
    const bool begins = std::any_of(stops_.begin(), stops_.end(), [&](const std::string& stop) {
      return stop.size() > tail && text.compare(start, tail, stop, 0, tail) == 0;
    });
    if (!begins) continue;
    held_ = text.substr(start);
    return text.substr(0, start);
  }
  held_.clear();
  matched_ = found;
  return text.substr(0, end);
}

std::string StopStrings::flush() {
  const std::string rest = std::move(held_);
  held_.clear();
  const size_t place = find(rest, &matched_);
  return rest.substr(0, std::min(place, rest.size()));
}

std::string Reply::say(const Ids& tokens, size_t* taken) {
  std::string text;
  for (*taken = 0; *taken < tokens.size() && matched().empty(); ++*taken)
    text += stops_.push(words_.push({tokens[*taken]}));
  text_ += text;
  return text;
}

std::string Reply::rest() {
  std::string text = stops_.push(words_.flush());
  if (matched().empty()) text += stops_.flush();
  text_ += text;
  return text;
}

Turn Transcript::plain(const Message& message) const {
  Turn turn{messages_, message, {}, {}, 0};
  const Rendered text = turns_->render(with(messages_, message));
  if (rendered_ && text.text.compare(0, rendered_->size(), *rendered_) == 0) {
    turn.tokens.assign(tokens->begin(), tokens->begin() + static_cast<int64_t>(rendered_tokens_));
    const Ids more = tokenizer_->encode(text.rest(rendered_->size()));
    turn.tokens.insert(turn.tokens.end(), more.begin(), more.end());
  } else {
    turn.tokens = tokenizer_->encode(text);
  }
  return turn;
}

Turn Transcript::open(const Message& message, int context, int room) const {
  Turn turn = plain(message);
  if (static_cast<int>(turn.tokens.size()) + room <= context || turn_starts(messages_).empty()) return turn;
  return shortened(messages_, message, static_cast<int>(kKeptShare * context));
}

std::optional<Turn> Transcript::shorter(const Turn& turn, int context) const {
  if (!turn.message || turn_starts(turn.before).empty()) return {};
  const int replied = static_cast<int>(this->replied());
  Turn found = shortened(turn.before, *turn.message, static_cast<int>(kKeptShare * context) - replied);
  if (static_cast<int>(found.tokens.size()) + replied >= context) return {};
  found.reply.assign(tokens->end() - replied, tokens->end());
  return found;
}

// As many of the latest turns as fit; everything is encoded again, as in a new conversation.
Turn Transcript::shortened(const std::vector<Message>& before, const Message& message, int most) const {
  const std::vector<size_t> starts = turn_starts(before);
  const auto turn_without = [&](size_t count) {
    std::vector<Message> kept(before.begin(), before.begin() + static_cast<int64_t>(starts[0]));
    if (count < starts.size())
      kept.insert(kept.end(), before.begin() + static_cast<int64_t>(starts[count]), before.end());
    const Ids encoded = tokenizer_->encode(turns_->render(with(kept, message)));
    return Turn{kept, message, encoded, {}, static_cast<int>(count)};
  };
  size_t low = 0, high = starts.size();  // the fewest turns that must go
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (static_cast<int>(turn_without(middle).tokens.size()) <= most) high = middle;
    else low = middle + 1;
  }
  return turn_without(low);
}

void Transcript::begin(const Turn& turn) {
  if (turn.message) {
    messages_ = with(turn.before, *turn.message);
    prompt_ = turns_->render(messages_).text;
  }
  prompt_tokens_ = turn.tokens.size();
  tokens = std::make_shared<Ids>(turn.tokens);
  tokens->insert(tokens->end(), turn.reply.begin(), turn.reply.end());
  rendered_.reset();
}

void Transcript::end(const Turn& turn, const std::string& text, const std::set<int32_t>& ends) {
  if (!turn.message) return;
  if (text.empty()) {
    messages_ = turn.before;
    return;
  }
  messages_.push_back({"assistant", text});
  size_t count = tokens->size();
  if (count > prompt_tokens_ && ends.count(tokens->back())) --count;
  TokenText words(*tokenizer_, true);
  bool cut = false;
  const Ids said(tokens->begin() + static_cast<int64_t>(prompt_tokens_), tokens->begin() + static_cast<int64_t>(count));
  std::string rendered = prompt_ + words.push(said);
  rendered += words.flush(&cut);
  if (cut) return;  // the message has no such character
  rendered_ = std::move(rendered);
  rendered_tokens_ = count;
}

void Transcript::rewind(size_t turns) {
  const std::vector<size_t> starts = turn_starts(messages_);
  if (turns > starts.size())
    throw input_error("the conversation has ", starts.size(), " turns, and ", turns, " are to be kept");
  if (turns == starts.size()) return;
  messages_.resize(starts[turns]);
  rendered_.reset();
}

}  // namespace edgedecode
