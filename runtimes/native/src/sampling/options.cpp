#include "options.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "../errors.h"

namespace edgedecode {
namespace {

struct Option {
  const char* name;
  double SamplingOptions::*field;
  bool whole;
  double least, most;
  const char* allowed;
};

using S = SamplingOptions;
constexpr double kAbove0 = 4.9406564584124654e-324, kMany = 2147483648.0;
const Option kOptions[] = {
    {"temperature", &S::temperature, false, 1e-6, 100, "0 (greedy), or 0.000001 to 100"},
    {"top_k", &S::top_k, true, 0, kMany, "0 (off) or more"},
    {"top_p", &S::top_p, false, kAbove0, 1, "above 0, up to 1 (off)"},
    {"min_p", &S::min_p, false, 0, 1, "0 (off) to 1"},
    {"repetition_penalty", &S::repetition_penalty, false, 1e-6, 100, "0.000001 to 100 (1 is off)"},
    {"repeat_penalty", &S::repetition_penalty, false, 1e-6, 100, "0.000001 to 100 (1 is off)"},
    {"frequency_penalty", &S::frequency_penalty, false, -100, 100, "-100 to 100 (0 is off)"},
    {"presence_penalty", &S::presence_penalty, false, -100, 100, "-100 to 100 (0 is off)"},
    {"penalty_window", &S::penalty_window, true, 0, kMany, "0 (all) or more"},
    {"top_n_sigma", &S::top_n_sigma, false, 0, 100, "0 (off) to 100"},
    {"typical_p", &S::typical_p, false, kAbove0, 1, "above 0, up to 1 (off)"},
    {"xtc_probability", &S::xtc_probability, false, 0, 1, "0 (off) to 1"},
    {"xtc_threshold", &S::xtc_threshold, false, 0, 1, "0 to 1"},
    {"mirostat", &S::mirostat, true, 2, 2, "0 (off) or 2"},
    {"mirostat_tau", &S::mirostat_tau, false, kAbove0, 100, "above 0, up to 100"},
    {"mirostat_eta", &S::mirostat_eta, false, 0, 10, "0 to 10"},
    {"dry_multiplier", &S::dry_multiplier, false, 0, 100, "0 (off) to 100"},
    {"dry_base", &S::dry_base, false, 1, 100, "1 to 100"},
    {"dry_allowed_length", &S::dry_allowed_length, true, 0, kMany, "0 or more"},
    {"dry_penalty_last_n", &S::dry_penalty_last_n, true, 0, kMany, "0 (all) or more"},
};
constexpr double kMostBias = 100;
constexpr size_t kMostBreakers = 128, kLongestBreaker = 64;

void take_breakers(const Json& value, SamplingOptions* options) {
  std::vector<std::string> breakers;
  for (const Json& each : value.array("dry_sequence_breakers")) {
    breakers.push_back(each.string("a breaker of dry_sequence_breakers"));
    const auto characters = static_cast<size_t>(std::count_if(
        breakers.back().begin(), breakers.back().end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
    if (characters < 1 || characters > kLongestBreaker)
      throw input_error("dry_sequence_breakers has a text of ", characters, " characters: 1 to ", kLongestBreaker);
  }
  if (breakers.size() > kMostBreakers)
    throw input_error("dry_sequence_breakers has ", breakers.size(), " texts: up to ", kMostBreakers, " are allowed");
  options->dry_sequence_breakers = std::move(breakers);
}

void take_bias(const Json& value, SamplingOptions* options) {
  options->logit_bias.clear();
  for (const auto& each : value.object("logit_bias")) {
    const std::string& id = each.first;
    if (id.empty() || id.size() > 10 || id.find_first_not_of("0123456789") != std::string::npos)
      throw input_error("logit_bias has the id \"", id, "\": ids are whole numbers of 0 or more");
    const double amount = each.second.number("logit_bias of id " + id);
    if (!(-kMostBias <= amount && amount <= kMostBias))
      throw input_error("logit_bias ", each.second.text(), " of id ", id, " is out of range: -100 (never) to 100");
    options->logit_bias.emplace_back(std::stoll(id), amount);
  }
  std::sort(options->logit_bias.begin(), options->logit_bias.end());
}

}  // namespace

std::string SamplingOptions::names() {
  std::string found;
  for (const Option& option : kOptions) found += std::string(option.name) + ", ";
  return found + "dry_sequence_breakers, logit_bias";
}

bool SamplingOptions::take(const std::string& name, const Json& value) {
  if (name == "dry_sequence_breakers") return take_breakers(value, this), true;
  if (name == "logit_bias") return take_bias(value, this), true;
  for (const Option& option : kOptions) {
    if (name != option.name) continue;
    const double given = option.whole ? static_cast<double>(value.integer(name)) : value.number(name);
    const bool allowed = std::isfinite(given) && option.least <= given && given <= option.most;
    if (!allowed && given != SamplingOptions().*option.field)
      throw input_error(name, " ", value.text(), " is out of range: ", option.allowed);
    this->*option.field = given;
    return true;
  }
  return false;
}

void SamplingOptions::bind(int64_t size, const std::function<std::vector<int64_t>(const std::string&)>& find) {
  if (!logit_bias.empty() && logit_bias.back().first >= size)
    throw input_error("logit_bias has the id ", logit_bias.back().first, ", and the vocabulary's ids are 0 to ",
                      size - 1);
  if (dry_multiplier == 0) return;
  const auto defaults = SamplingOptions().dry_sequence_breakers;
  std::set<int64_t> ids;
  for (const std::string& breaker : dry_sequence_breakers) {
    const auto found = find(breaker);
    if (found.empty() && std::find(defaults.begin(), defaults.end(), breaker) == defaults.end())
      throw input_error("dry_sequence_breakers has ", Json(breaker).text(),
                        ", which no token contains: give shorter texts");
    ids.insert(found.begin(), found.end());
  }
  breaker_ids.assign(ids.begin(), ids.end());
}

bool SamplingOptions::same_as(const SamplingOptions& other) const {
  return logit_bias == other.logit_bias && dry_sequence_breakers == other.dry_sequence_breakers &&
         std::all_of(std::begin(kOptions), std::end(kOptions),
                     [&](const Option& each) { return this->*each.field == other.*each.field; });
}

SamplingOptions SamplingOptions::unpenalised() const {
  SamplingOptions found = *this;
  found.repetition_penalty = 1;
  found.frequency_penalty = found.presence_penalty = found.dry_multiplier = 0;
  found.logit_bias.clear();
  return found;
}

}  // namespace edgedecode
