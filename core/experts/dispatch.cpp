#include "core/experts/dispatch.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

std::size_t place(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

/// The choices that ask for each expert, in token order.
std::vector<std::vector<std::int64_t>> requests(std::size_t expert_count,
                                                std::span<const std::int32_t> experts) {
  std::vector<std::vector<std::int64_t>> found(expert_count);
  for (std::size_t choice = 0; choice < experts.size(); ++choice)
    found[static_cast<std::size_t>(experts[choice])].push_back(static_cast<std::int64_t>(choice));
  return found;
}

/// Keeps `capacity` of them, again in token order.
template <class T>
void drop(std::vector<std::int64_t>& wanted, std::size_t capacity, DropPolicy policy,
          std::span<const T> weights) {
  if (policy == DropPolicy::probability) {
    std::stable_sort(wanted.begin(), wanted.end(), [&](std::int64_t a, std::int64_t b) {
      // NaN comes last; otherwise there would be no order.
      const T x = weights[place(a)], y = weights[place(b)];
      return std::isnan(x) ? false : std::isnan(y) ? true : x > y;
    });
  }
  wanted.resize(capacity);
  std::sort(wanted.begin(), wanted.end());
}

/// Slots for all choices that an expert keeps.
void add_slots(Dispatch& dispatch, std::span<const std::int64_t> kept) {
  for (const std::int64_t choice : kept) {
    dispatch.slot_of_choice[place(choice)] = static_cast<std::int64_t>(dispatch.choice_of_slot.size());
    dispatch.choice_of_slot.push_back(choice);
  }
  dispatch.first_slot.push_back(static_cast<std::int64_t>(dispatch.choice_of_slot.size()));
}

template <class T>
std::span<T> row(std::span<T> rows, std::int64_t index, std::size_t width) {
  return rows.subspan(place(index) * width, width);
}

}  // namespace

Result<std::int64_t> expert_capacity(std::int64_t tokens, std::size_t choices, std::size_t experts,
                                     double factor) {
  if (!std::isfinite(factor) || factor <= 0)
    return fail(Errc::invalid_argument, "the capacity factor of experts must be above 0, found {}", factor);
  const double share =
      static_cast<double>(tokens) * static_cast<double>(choices) / static_cast<double>(experts);
  return static_cast<std::int64_t>(
      std::min(std::ceil(share * factor), static_cast<double>(tokens) * static_cast<double>(choices)));
}

std::vector<std::int64_t> Dispatch::counts() const {
  std::vector<std::int64_t> found;
  for (std::size_t expert = 0; expert < experts(); ++expert) found.push_back(count(expert));
  return found;
}

std::vector<std::int64_t> Dispatch::chosen() const {
  auto found = counts();
  std::transform(found.begin(), found.end(), dropped.begin(), found.begin(), std::plus<>());
  return found;
}

template <class T>
Dispatch dispatch(std::size_t expert_count, std::span<const std::int32_t> experts, std::span<const T> weights,
                  std::optional<std::int64_t> capacity, DropPolicy policy) {
  CHECK(weights.size() == experts.size(), "one weight per choice");
  CHECK(!capacity || *capacity >= 0, "a capacity is no negative number");
  Dispatch found;
  found.first_slot.assign(1, 0);
  found.slot_of_choice.assign(experts.size(), Dispatch::kDropped);
  for (auto& wanted : requests(expert_count, experts)) {
    const std::size_t asked = wanted.size();
    if (capacity && asked > place(*capacity)) drop(wanted, place(*capacity), policy, weights);
    found.dropped.push_back(static_cast<std::int64_t>(asked - wanted.size()));
    add_slots(found, wanted);
  }
  return found;
}

Dispatch dispatch_of_some(const Dispatch& all, std::size_t choices, std::span<const std::size_t> tokens,
                          std::span<const std::int32_t> experts) {
  CHECK(experts.size() == tokens.size() * choices, "K experts for each token");
  Dispatch found;
  found.first_slot.assign(1, 0);
  found.slot_of_choice.assign(experts.size(), Dispatch::kDropped);
  found.dropped.assign(all.experts(), 0);
  std::vector<std::vector<std::int64_t>> kept(all.experts());
  for (std::size_t own = 0; own < experts.size(); ++own) {
    const std::size_t among_all = tokens[own / choices] * choices + own % choices;
    if (among_all >= all.slot_of_choice.size()) continue;
    const auto expert = static_cast<std::size_t>(experts[own]);
    if (all.slot_of_choice[among_all] == Dispatch::kDropped) {
      ++found.dropped[expert];
    } else {
      kept[expert].push_back(static_cast<std::int64_t>(own));
    }
  }
  for (const auto& choices_of_expert : kept) add_slots(found, choices_of_expert);
  return found;
}

template <class T>
void gather_tokens(const Dispatch& dispatch, std::size_t choices, std::size_t width,
                   std::span<const T> tokens, std::span<T> slots) {
  for (std::int64_t slot = 0; slot < dispatch.slots(); ++slot) {
    const auto token = dispatch.choice_of_slot[place(slot)] / static_cast<std::int64_t>(choices);
    const auto from = row(tokens, token, width);
    std::copy(from.begin(), from.end(), row(slots, slot, width).begin());
  }
}

template <class T>
void gather_tokens_backward(const Dispatch& dispatch, std::size_t choices, std::size_t width,
                            std::span<const T> d_slots, std::span<T> d_tokens) {
  for (std::size_t choice = 0; choice < dispatch.slot_of_choice.size(); ++choice) {
    const std::int64_t slot = dispatch.slot_of_choice[choice];
    if (slot == Dispatch::kDropped) continue;
    const auto from = row(d_slots, slot, width);
    const auto to = row(d_tokens, static_cast<std::int64_t>(choice / choices), width);
    for (std::size_t c = 0; c < width; ++c) to[c] += from[c];
  }
}

template <class T>
void combine(const Dispatch& dispatch, std::size_t choices, std::size_t width, std::span<const T> weights,
             std::span<const T> slots, std::span<T> tokens) {
  struct Part {
    T weight;
    const T* row;
  };
  std::vector<Part> parts(choices);
  for (std::size_t first = 0; first < dispatch.slot_of_choice.size(); first += choices) {
    std::size_t count = 0;
    for (std::size_t choice = first; choice < first + choices; ++choice) {
      const std::int64_t slot = dispatch.slot_of_choice[choice];
      if (slot != Dispatch::kDropped) parts[count++] = {weights[choice], row(slots, slot, width).data()};
    }
    T* const to = row(tokens, static_cast<std::int64_t>(first / choices), width).data();
    std::size_t i = 0;
    // Two at a time, which halves the reads and writes of a token's row; the order stays the same.
    for (; i + 1 < count; i += 2) {
      const auto [a, x] = parts[i];
      const auto [b, y] = parts[i + 1];
      for (std::size_t c = 0; c < width; ++c) to[c] = (to[c] + a * x[c]) + b * y[c];
    }
    if (i < count) {
      const auto [a, x] = parts[i];
      for (std::size_t c = 0; c < width; ++c) to[c] += a * x[c];
    }
  }
}

template <class T>
void combine_backward(const Dispatch& dispatch, std::size_t choices, std::size_t width,
                      std::span<const T> weights, std::span<const T> slots, std::span<const T> d_tokens,
                      std::span<T> d_slots, std::span<T> d_weights) {
  for (std::size_t choice = 0; choice < dispatch.slot_of_choice.size(); ++choice) {
    const std::int64_t slot = dispatch.slot_of_choice[choice];
    d_weights[choice] = 0;
    if (slot == Dispatch::kDropped) continue;
    const auto d_token = row(d_tokens, static_cast<std::int64_t>(choice / choices), width);
    const auto output = row(slots, slot, width);
    const auto d_slot = row(d_slots, slot, width);
    double product = 0;
    for (std::size_t c = 0; c < width; ++c) {
      product += static_cast<double>(output[c]) * static_cast<double>(d_token[c]);
      d_slot[c] = weights[choice] * d_token[c];
    }
    d_weights[choice] = static_cast<T>(product);
  }
}

template Dispatch dispatch<float>(std::size_t, std::span<const std::int32_t>, std::span<const float>,
                                  std::optional<std::int64_t>, DropPolicy);
template Dispatch dispatch<double>(std::size_t, std::span<const std::int32_t>, std::span<const double>,
                                   std::optional<std::int64_t>, DropPolicy);
template void gather_tokens<float>(const Dispatch&, std::size_t, std::size_t, std::span<const float>,
                                   std::span<float>);
template void gather_tokens<double>(const Dispatch&, std::size_t, std::size_t, std::span<const double>,
                                    std::span<double>);
template void gather_tokens_backward<float>(const Dispatch&, std::size_t, std::size_t, std::span<const float>,
                                            std::span<float>);
template void gather_tokens_backward<double>(const Dispatch&, std::size_t, std::size_t,
                                             std::span<const double>, std::span<double>);
template void combine<float>(const Dispatch&, std::size_t, std::size_t, std::span<const float>,
                             std::span<const float>, std::span<float>);
template void combine<double>(const Dispatch&, std::size_t, std::size_t, std::span<const double>,
                              std::span<const double>, std::span<double>);
template void combine_backward<float>(const Dispatch&, std::size_t, std::size_t, std::span<const float>,
                                      std::span<const float>, std::span<const float>, std::span<float>,
                                      std::span<float>);
template void combine_backward<double>(const Dispatch&, std::size_t, std::size_t, std::span<const double>,
                                       std::span<const double>, std::span<const double>, std::span<double>,
                                       std::span<double>);

}  // namespace troupe::core
