#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "../errors.h"

extern "C" {  // of runtimes/onnx/kernels/draw.cpp
int64_t edgedecode_draw_scratch(int64_t size);
int64_t edgedecode_top_row(const float* row, int64_t size, int64_t count, int64_t* found);
int64_t edgedecode_leading_row(const float* row, int64_t size, double* found);
int64_t edgedecode_draw_row(const float* row, const int64_t* ids, int64_t size, float scale, int64_t top_k,
                            double top_p, float min_p, float penalty, const int64_t* seen, int64_t seen_count,
                            uint64_t key, float* scratch);
}

namespace edgedecode {
namespace {

using Floats = std::vector<float>;
using Mask = std::vector<bool>;

constexpr double kMassUnit = 0x1p40;
constexpr double kLog2E = 1.4426950408889634;
constexpr float kLeastWeight = 0x1p-125f;
constexpr int kFarthest = 1000, kSteps = 1 << 12;  // of `near_top`

Error damaged_logits() {
  return capability_error(
      "the model's logits are not numbers: its weights are damaged (check with \"verify\"), or the engine's kernels "
      "fail on this machine");
}

float exponent_scale(double temperature) { return static_cast<float>(kLog2E / temperature); }

int64_t mass(double weight) { return static_cast<int64_t>(std::rint(weight * kMassUnit)); }

int64_t total_mass(const Floats& weights) {
  int64_t total = 0;
  for (float weight : weights) total += mass(weight);
  return total;
}

// 2^exponent for exponents up to 0, within 1.0e-7 of it; 0 below 2^-125. See `weight_of` in draw.cpp.
float power_of(float exponent) {
  if (!(exponent >= -125.0f)) return 0;
  const float rounder = 0x1.8p23f, rounded = exponent + rounder, f = exponent - (rounded - rounder);
  float p = 0x1.444004p-13f;
  for (float coefficient : {0x1.5f0896p-10f, 0x1.3b2a1cp-7f, 0x1.c6af6cp-5f, 0x1.ebfbe0p-3f, 0x1.62e430p-1f, 1.0f})
    p = p * f + coefficient;
  return std::ldexp(p, static_cast<int>(rounded - rounder));
}

float kth_largest(Floats logits, double top_k) {
  const auto place =
      logits.begin() + std::max<int64_t>(0, static_cast<int64_t>(logits.size()) - static_cast<int64_t>(top_k));
  std::nth_element(logits.begin(), place, logits.end());
  return *place;
}

// The largest logit minus `sigmas` standard deviations; sums of integers, so that their order does not matter.
float near_top(const float* logits, int64_t size, double sigmas) {
  const double top = *std::max_element(logits, logits + size);
  int64_t count = 0, total = 0, squares = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (!(logits[i] > static_cast<float>(top - kFarthest))) continue;
    const auto steps = static_cast<int64_t>(std::rint((top - static_cast<double>(logits[i])) * kSteps));
    ++count, total += steps, squares += steps * steps;
  }
  const __int128 spread = static_cast<__int128>(count) * squares - static_cast<__int128>(total) * total;
  return static_cast<float>(top -
                            sigmas * std::sqrt(static_cast<double>(spread)) / static_cast<double>(count * kSteps));
}

Mask at_least(const Floats& weights, float floor) {
  Mask kept(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) kept[i] = weights[i] >= floor;
  return kept;
}

// The smallest weight in the smallest set of likeliest ones whose share reaches `top_p`.
float nucleus_floor(Floats weights, double top_p) {
  const auto enough = std::max<int64_t>(1, static_cast<int64_t>(top_p * static_cast<double>(total_mass(weights))));
  std::sort(weights.begin(), weights.end(), std::greater<float>());
  int64_t found = 0;
  for (float weight : weights)
    if ((found += mass(weight)) >= enough) return weight;
  return weights.back();
}

Mask typical(const Floats& weights, double share) {
  std::vector<double> distances(weights.size());
  int64_t surprise = 0;
  const int64_t total = total_mass(weights);
  for (size_t i = 0; i < weights.size(); ++i) {
    distances[i] = -logarithm(std::max(weights[i], kLeastWeight));
    surprise += mass(weights[i] * distances[i]);
  }
  const double expected = static_cast<double>(surprise) / static_cast<double>(total);
  for (size_t i = 0; i < weights.size(); ++i)
    distances[i] = weights[i] > 0 ? std::abs(distances[i] - expected) : INFINITY;
  std::vector<size_t> nearest(weights.size());
  std::iota(nearest.begin(), nearest.end(), 0);
  std::stable_sort(nearest.begin(), nearest.end(), [&](size_t a, size_t b) { return distances[a] < distances[b]; });
  const auto enough = std::max<int64_t>(1, static_cast<int64_t>(share * static_cast<double>(total)));
  double farthest = INFINITY;
  int64_t found = 0;
  for (size_t place : nearest)
    if ((found += mass(weights[place])) >= enough) {
      farthest = distances[place];
      break;
    }
  Mask kept(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) kept[i] = distances[i] <= farthest;
  return kept;
}

// XTC: drops all with a share of `threshold` or more, except the least likely of them and ties with it.
Mask without_best(const Floats& weights, double threshold) {
  const double enough = threshold * static_cast<double>(total_mass(weights));
  float least = INFINITY;
  for (float weight : weights)
    if (weight * kMassUnit >= enough) least = std::min(least, weight);
  Mask kept(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) kept[i] = weights[i] <= least;
  return kept;
}

// Keeps those whose surprise is at most `bits`; if there are none, the likeliest.
Mask unsurprising(const Floats& weights, double bits) {
  const double least = std::pow(2.0, std::min(0.0, -bits)) * static_cast<double>(total_mass(weights));
  const double most = *std::max_element(weights.begin(), weights.end()) * kMassUnit;
  Mask kept(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) kept[i] = weights[i] * kMassUnit >= std::min(least, most);
  return kept;
}

}  // namespace

double pairwise_sum(const double* values, int64_t count) {
  if (count > 128) {
    int64_t half = count / 2;
    half -= half % 8;
    return pairwise_sum(values, half) + pairwise_sum(values + half, count - half);
  }
  double sums[8] = {};
  int64_t i = 0;
  if (count >= 8) {
    std::copy(values, values + 8, sums);
    for (i = 8; i < count - count % 8; i += 8)
      for (int64_t place = 0; place < 8; ++place) sums[place] += values[i + place];
  }
  double sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  for (; i < count; ++i) sum += values[i];
  return sum;
}

Sampler::Sampler(const SamplingOptions& options, int64_t vocabulary_size)
    : options_(options), unpenalised_(options.unpenalised()), biases_(biases_of(options)), size_(vocabulary_size),
      known_(options.top_n_sigma == 0 && options.typical_p == 1 && options.xtc_probability == 0),
      counter_(vocabulary_size, static_cast<int64_t>(options.penalty_window)) {
  if (options.dry_multiplier != 0) dry_ = std::make_unique<Repetitions>(vocabulary_size, options);
  if (options.mirostat != 0 && !options.greedy())
    limit_ = std::make_unique<SurpriseLimit>(options.mirostat_tau, options.mirostat_eta);
}

void Sampler::begin(const Ids& tokens, int64_t generated) {
  counter_.clear();
  if (options_.penalises()) {
    const auto start = static_cast<int64_t>(tokens.size()) - generated;
    counter_.add(tokens.data(), start, false);
    counter_.add(tokens.data() + start, generated, true);
  }
  if (dry_) dry_->begin(), dry_->add(tokens);
  if (limit_) limit_->begin();
}

void Sampler::extend(const Ids& tokens) {
  if (options_.penalises()) counter_.add(tokens.data(), static_cast<int64_t>(tokens.size()), true);
  if (dry_) dry_->add(tokens);
  if (limit_) limit_->extend(tokens);
}

int64_t Sampler::draw(const float* row, const Ids& path, uint64_t key, const std::vector<int64_t>* ids) {
  if (limit_) {
    const Probs found = unsurprising_probs(row, path, key, ids);
    return found.ids[first_arrival(key, found.ids, found.p)];
  }
  const int64_t size = ids ? static_cast<int64_t>(ids->size()) : size_;
  const bool changed = dry_ || !biases_.ids.empty() || options_.frequency_penalty != 0 ||
                       options_.presence_penalty != 0 || (!known_ && options_.penalises());
  if (!changed)
    return drawn(row, size, options_, options_.penalises() ? counter_.after(path).among(ids) : Marked(), key, ids);
  const Floats logits = penalised(row, size, path, ids);
  return drawn(logits.data(), size, unpenalised_, Marked(), key, ids);
}

// Samples with what the kernels' draw has of the options, or with all of them.
int64_t Sampler::drawn(const float* row, int64_t size, const SamplingOptions& options, const Marked& seen, uint64_t key,
                       const std::vector<int64_t>* ids) {
  if (!known_ && !options.greedy()) {
    const Kept kept = weighted(row, size, first_uniform(key), {});
    std::vector<int64_t> candidates = kept.indices;
    if (ids)
      for (int64_t& each : candidates) each = (*ids)[each];
    const std::vector<double> rates(kept.weights.begin(), kept.weights.end());
    return candidates[first_arrival(key, candidates, rates)];
  }
  scratch_.resize(std::max<size_t>(scratch_.size(), edgedecode_draw_scratch(size) / sizeof(float)));
  const int64_t token = edgedecode_draw_row(
      row, ids ? ids->data() : nullptr, size, options.greedy() ? 0.0f : exponent_scale(options.temperature),
      static_cast<int64_t>(options.top_k), options.top_p, static_cast<float>(options.min_p),
      static_cast<float>(options.repetition_penalty), seen.ids.data(), static_cast<int64_t>(seen.ids.size()), key,
      scratch_.data());
  if (token < 0) throw damaged_logits();
  return token;
}

// What Mirostat draws from.
Probs Sampler::unsurprising_probs(const float* row, const Ids& path, uint64_t key, const std::vector<int64_t>* ids) {
  const int64_t size = ids ? static_cast<int64_t>(ids->size()) : size_;
  Kept kept = weighted(penalised(row, size, path, ids).data(), size, first_uniform(key), limit_->after(path));
  Probs found{std::move(kept.indices), {kept.weights.begin(), kept.weights.end()}};
  const double sum = pairwise_sum(found.p.data(), static_cast<int64_t>(found.p.size()));
  for (double& each : found.p) each /= sum;
  if (ids)
    for (int64_t& each : found.ids) each = (*ids)[each];
  limit_->show(path, found);
  return found;
}

Floats Sampler::penalised(const float* row, int64_t size, const Ids& path, const std::vector<int64_t>* ids) const {
  Floats found(row, row + size);
  const Marked bias = biases_.among(ids);
  for (size_t i = 0; i < bias.ids.size(); ++i) found[bias.ids[i]] += bias.numbers[i];
  const auto repetition = static_cast<float>(options_.repetition_penalty);
  const auto frequency = static_cast<float>(options_.frequency_penalty);
  const auto presence = static_cast<float>(options_.presence_penalty);
  const Marked seen = options_.penalises() ? counter_.after(path).among(ids) : Marked();
  for (size_t i = 0; i < seen.ids.size(); ++i) {
    float& value = found[seen.ids[i]];
    if (options_.repetition_penalty != 1) value = value > 0 ? value / repetition : value * repetition;
    if (options_.frequency_penalty != 0) value -= seen.numbers[i] * frequency;
    if (options_.presence_penalty != 0) value -= static_cast<float>(seen.numbers[i] > 0) * presence;
  }
  if (dry_) {
    const Marked repeated = dry_->after(path).among(ids);
    for (size_t i = 0; i < repeated.ids.size(); ++i) found[repeated.ids[i]] -= repeated.numbers[i];
  }
  return found;
}

// The indices to sample from, ascending, and their weights, not normalised.
Sampler::Kept Sampler::weighted(const float* logits, int64_t size, double coin, std::optional<double> bits) const {
  if (std::any_of(logits, logits + size, [](float x) { return x != x; })) throw damaged_logits();
  const float top = *std::max_element(logits, logits + size);
  if (!std::isfinite(top)) throw damaged_logits();
  float least = -INFINITY;
  if (options_.top_k != 0) least = kth_largest({logits, logits + size}, options_.top_k);
  if (options_.top_n_sigma != 0) least = std::max(least, near_top(logits, size, options_.top_n_sigma));
  const float scale = exponent_scale(options_.temperature);
  Kept kept;
  for (int64_t i = 0; i < size; ++i) {
    if (!(logits[i] >= least)) continue;
    kept.indices.push_back(i);
    kept.weights.push_back(power_of((logits[i] - top) * scale));
  }
  const auto keep = [&kept](const Mask& mask) {
    size_t count = 0;
    for (size_t i = 0; i < mask.size(); ++i)
      if (mask[i]) kept.indices[count] = kept.indices[i], kept.weights[count++] = kept.weights[i];
    kept.indices.resize(count), kept.weights.resize(count);
  };
  if (options_.top_p != 1) keep(at_least(kept.weights, nucleus_floor(kept.weights, options_.top_p)));
  if (options_.min_p != 0) keep(at_least(kept.weights, static_cast<float>(options_.min_p)));
  if (options_.typical_p != 1) keep(typical(kept.weights, options_.typical_p));
  if (options_.xtc_probability != 0 && coin < options_.xtc_probability)
    keep(without_best(kept.weights, options_.xtc_threshold));
  if (bits) keep(unsurprising(kept.weights, *bits));
  keep(at_least(kept.weights, kLeastWeight / 2));  // not those of 0
  return kept;
}

std::vector<int64_t> Sampler::top(const float* row, int k) const {
  std::vector<int64_t> found(std::min<int64_t>(k, size_));
  if (edgedecode_top_row(row, size_, static_cast<int64_t>(found.size()), found.data()) < 0) found.clear();
  return found;
}

Leading Sampler::leading(const float* row, int64_t size) {
  double found[2];
  const int64_t index = edgedecode_leading_row(row, size, found);
  if (index < 0) throw damaged_logits();
  return {index, found[0], found[1]};
}

}  // namespace edgedecode
