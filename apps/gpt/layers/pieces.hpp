#pragma once

#include <algorithm>
#include <cstddef>

namespace troupe::apps::gpt {

/// Rows of keys or values (N, B, L, C) as N members of a group have them, two pieces of P = L/2 positions of
/// each sequence: member i has pieces i and 2N - 1 - i. By position they are (B, T, C), with T = N L.
struct PieceRows {
  std::size_t members, batch, length, width;  ///< N, B, L, C

  /// Visits each piece with its elements' place as members exchange it, and by position.
  template <class Visit>
  void for_each_piece(Visit visit) const {
    const std::size_t positions = length / 2;
    for (std::size_t member = 0; member < members; ++member) {
      for (std::size_t b = 0; b < batch; ++b) {
        for (std::size_t half = 0; half < 2; ++half) {
          const std::size_t row = (member * batch + b) * length + half * positions;
          const std::size_t piece = half == 0 ? member : 2 * members - 1 - member;
          visit(row * width, (b * members * length + piece * positions) * width);
        }
      }
    }
  }
};

template <class T>
void rows_by_position(const PieceRows& rows, const T* by_member, T* by_position) {
  rows.for_each_piece([&](std::size_t member, std::size_t position) {
    std::copy_n(by_member + member, rows.length / 2 * rows.width, by_position + position);
  });
}

template <class T>
void rows_by_member(const PieceRows& rows, const T* by_position, T* by_member) {
  rows.for_each_piece([&](std::size_t member, std::size_t position) {
    std::copy_n(by_position + position, rows.length / 2 * rows.width, by_member + member);
  });
}

}  // namespace troupe::apps::gpt
