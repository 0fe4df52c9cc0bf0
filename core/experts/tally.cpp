#include "core/experts/tally.hpp"

#include <algorithm>
#include <functional>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

template <class Operation>
void combine_each(std::vector<std::int64_t>& into, const std::vector<std::int64_t>& other,
                  Operation combine) {
  CHECK(into.size() == other.size(), "tallies that are combined belong to one model");
  std::transform(into.begin(), into.end(), other.begin(), into.begin(), combine);
}

}  // namespace

void ExpertTally::add(std::size_t layer, const Dispatch& dispatch) {
  for (std::size_t e = 0; e < dispatch.experts(); ++e) {
    chosen_[layer * experts_ + e] += dispatch.count(e) + dispatch.dropped[e];
    dropped_[layer * experts_ + e] += dispatch.dropped[e];
  }
}

void ExpertTally::add(std::size_t layer, std::span<const std::int64_t> chosen,
                      std::span<const std::int64_t> dropped) {
  CHECK(chosen.size() == experts_ && dropped.size() == experts_, "a layer has counts of each expert");
  for (std::size_t e = 0; e < experts_; ++e) {
    chosen_[layer * experts_ + e] += chosen[e];
    dropped_[layer * experts_ + e] += dropped[e];
  }
}

std::vector<std::int64_t> ExpertTally::counts() const {
  auto all = chosen_;
  all.insert(all.end(), dropped_.begin(), dropped_.end());
  return all;
}

ExpertTally& ExpertTally::operator+=(const ExpertTally& other) {
  if (other.experts_ == 0) return *this;
  combine_each(chosen_, other.chosen_, std::plus<>());
  combine_each(dropped_, other.dropped_, std::plus<>());
  return *this;
}

ExpertTally ExpertTally::operator-(const ExpertTally& other) const {
  ExpertTally difference = *this;
  if (other.experts_ == 0) return difference;
  combine_each(difference.chosen_, other.chosen_, std::minus<>());
  combine_each(difference.dropped_, other.dropped_, std::minus<>());
  return difference;
}

}  // namespace troupe::core
