#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

namespace troupe::gpu {

/// How many elements each member of a group gives or gets, in group order; somebody else keeps the numbers.
/// Where all are alike, as in most collectives, there is one: what an operation costs a member must not grow
/// with the group by more than the bytes that it moves.
class PartCountsView {
 public:
  PartCountsView() = default;
  PartCountsView(std::span<const std::size_t> each)  // NOLINT: a table of them is one
      : table_(each.data()), members_(each.size()) {}
  PartCountsView(const std::vector<std::size_t>& each)  // NOLINT: as above
      : PartCountsView(std::span(each)) {}

  static PartCountsView even(std::size_t elements, std::size_t members) {
    PartCountsView counts;
    counts.elements_ = elements;
    counts.members_ = members;
    return counts;
  }

  std::size_t size() const { return members_; }
  bool empty() const { return members_ == 0; }
  std::size_t operator[](std::size_t member) const { return table_ == nullptr ? elements_ : table_[member]; }
  /// Known to be alike; a table may be, too.
  bool is_even() const { return table_ == nullptr; }
  /// What all members before this one have together; for the size, all.
  std::size_t before(std::size_t member) const;
  std::size_t total() const { return before(members_); }
  std::size_t most() const;
  std::vector<std::size_t> each() const;

 private:
  const std::size_t* table_ = nullptr;
  std::size_t elements_ = 0;  ///< of each, without a table
  std::size_t members_ = 0;
};

/// The same, with its numbers. A table whose numbers are all alike is kept as one number, so that what is
/// equal has equal forms.
class PartCounts {
 public:
  PartCounts() = default;
  PartCounts(std::vector<std::size_t> each);  // NOLINT: a table of them is one
  PartCounts(std::initializer_list<std::size_t> each) : PartCounts(std::vector<std::size_t>(each)) {}
  static PartCounts even(std::size_t elements, std::size_t members);

  operator PartCountsView() const { return view(); }  // NOLINT: who reads them does not ask who keeps them
  PartCountsView view() const {
    return table_.empty() ? PartCountsView::even(elements_, members_) : std::span(table_);
  }
  std::size_t size() const { return members_; }
  bool empty() const { return members_ == 0; }
  bool is_even() const { return table_.empty(); }
  std::size_t operator[](std::size_t member) const { return view()[member]; }
  std::size_t before(std::size_t member) const { return view().before(member); }
  std::size_t total() const { return view().total(); }
  std::vector<std::size_t> each() const { return view().each(); }

  friend bool operator==(const PartCounts&, const PartCounts&) = default;

 private:
  std::vector<std::size_t> table_;
  std::size_t elements_ = 0;  ///< of each, without a table
  std::size_t members_ = 0;
};

}  // namespace troupe::gpu
