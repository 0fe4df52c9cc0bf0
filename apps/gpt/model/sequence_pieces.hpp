#pragma once

#include <algorithm>
#include <cstddef>

#include "apps/gpt/model/activations.hpp"
#include "apps/gpt/model/group.hpp"
#include "core/errors.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// B sequences of T tokens, N members, L = T / N rows of a sequence that a member keeps, P = L / 2 positions
// of a piece, W elements of a row.

/// The rows of sequences whose pieces the members of a group keep (positions_of_member()).
template <class T>
class SequencePieces {
 public:
  /// `own` is (B, L); `exchanged` has room for (N, B, L, W). Both the group and `exchanged` must outlive
  /// this.
  SequencePieces(TensorGroup<T>& group, T* exchanged, BatchShape own, std::size_t width)
      : group_(group), exchanged_(exchanged), own_(own), width_(width), members_(group.size()) {}

  std::size_t length() const { return own_.length * members_; }
  std::size_t positions() const { return own_.length / 2; }
  /// The first position in the lower or upper half of a member's rows.
  std::size_t first(std::size_t member, std::size_t half) const {
    return (half == 0 ? member : 2 * members_ - 1 - member) * positions();
  }

  /// own (B, L, W) of every member to all (B, T, W).
  core::Result<void> gather(const T* own, T* all) const {
    const std::size_t count = own_elements();
    TRY(group_.gather({own, count}, {exchanged_, members_ * count}, counts()));
    for_each_piece([&](std::size_t exchanged, std::size_t place) {
      std::copy_n(exchanged_ + exchanged, positions() * width_, all + place);
    });
    return {};
  }

  /// own (B, L, W) = the sum over all members of their values at its positions in all (B, T, W).
  core::Result<void> scatter_sum(const T* all, T* own) const {
    for_each_piece([&](std::size_t exchanged, std::size_t place) {
      std::copy_n(all + place, positions() * width_, exchanged_ + exchanged);
    });
    const std::size_t count = own_elements();
    return group_.scatter_sum({exchanged_, members_ * count}, {own, count}, counts());
  }

 private:
  std::size_t own_elements() const { return own_.rows() * width_; }
  typename TensorGroup<T>::Counts counts() const {
    return typename TensorGroup<T>::Counts(members_, own_elements());
  }

  /// Visits each piece with its place as members exchange it, and its place by position.
  template <class Visit>
  void for_each_piece(Visit visit) const {
    for (std::size_t member = 0; member < members_; ++member) {
      for (std::size_t b = 0; b < own_.batch; ++b) {
        for (std::size_t half = 0; half < 2; ++half) {
          const std::size_t row = (member * own_.batch + b) * own_.length + half * positions();
          visit(row * width_, (b * length() + first(member, half)) * width_);
        }
      }
    }
  }

  TensorGroup<T>& group_;
  T* exchanged_;
  BatchShape own_;
  std::size_t width_;
  std::size_t members_;
};

}  // namespace troupe::apps::gpt
