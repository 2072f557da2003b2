#include "penalties.h"

#include <algorithm>
#include <cmath>

namespace edgedecode {
namespace {

constexpr double kMostBias = 100, kBan = -1e4;  // a ban is finite: a grammar may allow only banned tokens
constexpr int64_t kMostOver = 64;               // tokens above DRY's allowed length that count
constexpr double kMostPenalty = 1e4;
constexpr int64_t kNone = -1;  // in the place of breakers and padding

}  // namespace

Marked Marked::among(const std::vector<int64_t>* row_ids) const {
  if (!row_ids) return *this;
  Marked found;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto place = std::lower_bound(row_ids->begin(), row_ids->end(), ids[i]);
    if (place != row_ids->end() && *place == ids[i]) found.add(place - row_ids->begin(), numbers[i]);
  }
  return found;
}

Marked biases_of(const SamplingOptions& options) {
  Marked found;
  for (const auto& each : options.logit_bias)
    found.add(each.first, static_cast<float>(each.second == -kMostBias ? kBan : each.second));
  return found;
}

void Counter::add(const int32_t* tokens, int64_t count, bool generated) {
  for (int64_t i = 0; i < count; ++i) {
    if (window_) {
      tokens_.emplace_back(tokens[i], generated);
    } else if (tokens[i] < size_) {
      const auto place = places_.emplace(tokens[i], counts_.ids.size());
      if (place.second) counts_.add(tokens[i], 0);
      counts_.numbers[place.first->second] += generated;
    }
  }
  if (window_ && static_cast<int64_t>(tokens_.size()) > 2 * window_)
    tokens_.erase(tokens_.begin(), tokens_.end() - window_);
}

Marked Counter::after(const Ids& path) const {
  Marked found = counts_;
  std::unordered_map<int64_t, size_t> more;
  const auto count = [&](int64_t token, bool generated) {
    if (token >= size_) return;
    const auto known = places_.find(token);
    size_t place = known == places_.end() ? 0 : known->second;
    if (known == places_.end()) {
      const auto added = more.emplace(token, found.ids.size());
      if (added.second) found.add(token, 0);
      place = added.first->second;
    }
    found.numbers[place] += generated;
  };
  const int64_t total = static_cast<int64_t>(tokens_.size() + path.size());
  const int64_t first = window_ ? std::max<int64_t>(0, total - window_) : 0;
  for (int64_t i = first; i < total; ++i) {
    const auto inside = static_cast<int64_t>(tokens_.size());
    if (i < inside) count(tokens_[i].first, tokens_[i].second);
    else count(path[i - inside], true);
  }
  return found;
}

std::vector<int64_t> Repetitions::with(const Ids& tokens) const {
  std::vector<int64_t> found = tokens_;
  for (int64_t token : tokens) {
    const bool breaks = std::binary_search(options_.breaker_ids.begin(), options_.breaker_ids.end(), token);
    found.push_back(breaks || token >= size_ ? kNone : token);
  }
  const auto last = static_cast<size_t>(options_.dry_penalty_last_n);
  if (last && found.size() > last) found.erase(found.begin(), found.end() - last);
  return found;
}

Marked Repetitions::after(const Ids& path) const {
  const std::vector<int64_t> tokens = with(path);
  const auto size = static_cast<int64_t>(tokens.size()), allowed = static_cast<int64_t>(options_.dry_allowed_length);
  std::vector<int64_t> ends;  // where a repetition ends
  for (int64_t end = 0; end + 1 < size; ++end) ends.push_back(end);
  std::map<int64_t, int64_t> longest;
  for (int64_t length = 0; length < std::min(size, allowed + kMostOver); ++length) {
    const int64_t token = tokens[size - 1 - length];
    if (token == kNone) break;
    const auto differs = [&](int64_t end) { return end < length || tokens[end - length] != token; };
    ends.erase(std::remove_if(ends.begin(), ends.end(), differs), ends.end());
    if (ends.empty()) break;
    if (length + 1 >= allowed)
      for (int64_t end : ends) longest[tokens[end + 1]] = length + 1;
  }
  longest.erase(kNone);
  Marked found;
  for (const auto& each : longest) {
    const double power = std::pow(options_.dry_base, static_cast<double>(each.second - allowed));
    found.add(each.first, static_cast<float>(std::min(kMostPenalty, options_.dry_multiplier * power)));
  }
  return found;
}

double Probs::of(int64_t id) const {
  const auto place = std::lower_bound(ids.begin(), ids.end(), id);
  return place != ids.end() && *place == id ? p[place - ids.begin()] : 0.0;
}

double SurpriseLimit::after(const Ids& path) {
  for (size_t place = limits_.size() - 1; place < path.size(); ++place) {
    const auto row = rows_.find(place);
    const double p = row == rows_.end() ? 0.0 : row->second.of(path[place]);
    const double error = p > 0 ? -std::log2(p) - target_ : 0.0;
    limits_.push_back(limits_[place] - rate_ * error);
  }
  return limits_[path.size()];
}

void SurpriseLimit::show(const Ids& path, Probs probs) {
  if (limits_.size() > path.size() + 1) limits_.resize(path.size() + 1);
  rows_[path.size()] = std::move(probs);
}

}  // namespace edgedecode
