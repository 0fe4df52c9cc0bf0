#include "gpu/collective/part_counts.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace troupe::gpu {

std::size_t PartCountsView::before(std::size_t member) const {
  if (table_ == nullptr) return elements_ * member;
  return std::accumulate(table_, table_ + member, std::size_t{0});
}

std::size_t PartCountsView::most() const {
  if (table_ == nullptr) return elements_;
  return members_ == 0 ? 0 : *std::max_element(table_, table_ + members_);
}

std::vector<std::size_t> PartCountsView::each() const {
  if (table_ == nullptr) return std::vector<std::size_t>(members_, elements_);
  return {table_, table_ + members_};
}

PartCounts::PartCounts(std::vector<std::size_t> each) : members_(each.size()) {
  if (each.empty()) return;
  if (std::ranges::adjacent_find(each, std::ranges::not_equal_to{}) == each.end()) {
    elements_ = each.front();
  } else {
    table_ = std::move(each);
  }
}

PartCounts PartCounts::even(std::size_t elements, std::size_t members) {
  PartCounts counts;
  counts.elements_ = elements;
  counts.members_ = members;
  return counts;
}

}  // namespace troupe::gpu
