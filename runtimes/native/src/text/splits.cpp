#include "splits.h"

#include <string_view>

#include "utf8.h"

namespace edgedecode {
namespace {

constexpr size_t kMostSteps = 16;
constexpr size_t kNone = static_cast<size_t>(-1);

}  // namespace

Splits::Splits(const Tables& tables)
    : classes_{tables.table<uint16_t>(Tables::kClassBlocks), tables.table<uint8_t>(Tables::kClasses)},
      steps_(tables.table<Step>(Tables::kSteps)),
      code_(tables.table<Instruction>(Tables::kCode)),
      masks_(tables.table<uint64_t>(Tables::kMasks)) {
  if (steps_.count > kMostSteps) tables.damaged();
  for (size_t at = 0; at < code_.count; ++at) {
    const Instruction& each = code_[at];
    const bool jumps = each.kind == kEither || each.kind == kJump;
    if ((jumps && each.least <= at) || each.kind > (kRun | kWhole)) tables.damaged();
  }
}

Characters Splits::read(std::string_view text) const {
  Characters found;
  found.classes.reserve(text.size());
  found.starts.reserve(text.size() + 1);
  for (size_t place = 0; place < text.size();) {
    found.starts.push_back(static_cast<uint32_t>(place));
    found.classes.push_back(classes_.of(next_code_point(text.data(), place)) & 63);
  }
  found.starts.push_back(static_cast<uint32_t>(text.size()));
  return found;
}

// The end of what matches at `start`, or kNone.
size_t Splits::match(uint32_t at, const uint8_t* classes, size_t start, size_t stop, std::vector<Way>& ways) const {
  size_t place = start, budget = 4096 + 64 * (stop - start);  // known expressions take a few steps a character
  ways.clear();
  for (;;) {
    const Instruction& now = code_.at(at);
    bool matches = true;
    if (now.kind == kMatch) return place;
    if (now.kind == kEither) {
      ways.push_back({now.least, place, place});
      ++at;
    } else if (now.kind == kJump) {
      at = now.least;
    } else {
      const uint64_t mask = masks_.at(now.mask);
      const auto takes = [&](size_t n) { return mask >> classes[n] & 1; };
      if (now.kind == kAhead || now.kind == kNotAhead) {
        matches = (place < stop && takes(place)) == (now.kind == kAhead);
      } else {
        const size_t limit = now.most == 0 || now.most > stop - place ? stop : place + now.most;
        size_t end = place;
        while (end < limit && takes(end)) ++end;
        budget -= budget < end - place ? budget : end - place;
        const size_t least = place + now.least;
        matches = end >= least;
        if (matches && end > least && !(now.kind & kWhole)) ways.push_back({at + 1, least, end - 1});
        place = end;
      }
      ++at;
    }
    if (!matches) {
      if (ways.empty()) return kNone;
      Way& last = ways.back();
      at = last.at;
      place = last.most;
      if (last.most == last.least) ways.pop_back();
      else --last.most;
    }
    if (budget-- == 0)
      throw manifest_error("tokenizer.bin has a pre-tokenizer that takes too long: package the model again");
  }
}

void Splits::step(size_t number, const Characters& text, size_t start, size_t stop,
                  const std::function<void(size_t, size_t)>& take) const {
  if (start == stop) return;
  if (number == steps_.count) return take(text.starts[start], text.starts[stop]);
  const Step& how = steps_[number];
  std::vector<Way> ways;
  size_t done = start;
  for (size_t place = start; place < stop;) {
    const size_t end = match(how.start, text.classes.data(), place, stop, ways);
    if (end == kNone || end == place) {
      ++place;
      continue;
    }
    if (how.keeps) step(number + 1, text, done, place, take);
    step(number + 1, text, place, end, take);
    done = place = end;
  }
  if (how.keeps) step(number + 1, text, done, stop, take);
}

}  // namespace edgedecode
