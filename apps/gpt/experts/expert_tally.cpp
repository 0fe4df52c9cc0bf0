#include "apps/gpt/experts/expert_tally.hpp"

#include <algorithm>
#include <functional>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;
using core::Value;

namespace {

template <class Operation>
void combine_each(std::vector<std::int64_t>& into, const std::vector<std::int64_t>& other,
                  Operation combine) {
  CHECK(into.size() == other.size(), "tallies that are combined are of one model");
  std::transform(into.begin(), into.end(), other.begin(), into.begin(), combine);
}

}  // namespace

void ExpertTally::add(std::span<const ExpertRoutes> routes) {
  if (experts_ == 0) return;
  CHECK(routes.size() == layers(), "there are routes for every layer");
  for (std::size_t layer = 0; layer < routes.size(); ++layer) {
    const core::Dispatch& dispatch = routes[layer].dispatch;
    for (std::size_t e = 0; e < dispatch.experts(); ++e) {
      chosen_[layer * experts_ + e] += dispatch.count(e) + dispatch.dropped[e];
      dropped_[layer * experts_ + e] += dispatch.dropped[e];
    }
  }
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

std::vector<std::int64_t> ExpertTally::counts() const {
  auto all = chosen_;
  all.insert(all.end(), dropped_.begin(), dropped_.end());
  return all;
}

void ExpertTally::set_counts(std::span<const std::int64_t> counts) {
  CHECK(counts.size() == chosen_.size() + dropped_.size(), "as many counts as counts() gives");
  std::copy_n(counts.begin(), chosen_.size(), chosen_.begin());
  std::copy_n(counts.begin() + static_cast<std::ptrdiff_t>(chosen_.size()), dropped_.size(),
              dropped_.begin());
}

Value ExpertTally::value() const {
  const auto list = [](const std::vector<std::int64_t>& counts) {
    return Value(Value::List(counts.begin(), counts.end()));
  };
  return Value::Map{{"experts", static_cast<std::int64_t>(experts_)},
                    {"chosen", list(chosen_)},
                    {"dropped", list(dropped_)}};
}

Result<void> ExpertTally::set_value(const Value& value) {
  std::vector<std::int64_t> found;
  for (const char* name : {"chosen", "dropped"}) {
    const Value* list = value.find(name);
    if (list == nullptr || list->as_list() == nullptr) continue;
    for (const Value& count : *list->as_list()) found.push_back(count.as_int().value_or(-1));
  }
  const Value* experts = value.find("experts");
  const bool fits = experts != nullptr && experts->as_int() == static_cast<std::int64_t>(experts_) &&
                    found.size() == chosen_.size() + dropped_.size() &&
                    std::all_of(found.begin(), found.end(), [](std::int64_t count) { return count >= 0; });
  if (!fits)
    return core::fail(core::Errc::mismatch,
                      "the checkpoint's expert_load is not that of {} layers with {} experts each", layers(),
                      experts_);
  set_counts(found);
  return {};
}

}  // namespace troupe::apps::gpt
