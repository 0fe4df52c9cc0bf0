#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/boxes/box.hpp"
#include "core/dtype.hpp"
#include "core/result.hpp"
#include "core/values/value.hpp"

namespace troupe::core {

/// A row-major tensor in host memory.
struct HostTensor {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> bytes;

  friend bool operator==(const HostTensor&, const HostTensor&) = default;
};

/// A batch of named tensors: axis 0 of each is the batch. There are also arrays with one value per row, and
/// values of the whole batch. All operations return a new dictionary; bytes are copied.
class TensorDict {
 public:
  using Tensors = std::map<std::string, HostTensor>;
  using Arrays = std::map<std::string, std::vector<Value>>;

  TensorDict() = default;
  /// Errc::invalid_argument names a tensor without a batch axis or whose bytes do not match its shape, or two
  /// that have different batch lengths or the same name. Without tensors and arrays the batch has no rows.
  static Result<TensorDict> create(Tensors tensors, Arrays arrays = {}, Value::Map meta = {});

  std::int64_t rows() const { return rows_; }
  const Tensors& tensors() const { return tensors_; }
  const Arrays& arrays() const { return arrays_; }
  const Value::Map& meta() const { return meta_; }

  /// These rows in this order; rows may be repeated. Errc::invalid_argument for a row that does not exist.
  Result<TensorDict> take(std::span<const std::int64_t> rows) const;
  /// Rows [first, first + count).
  Result<TensorDict> slice(std::int64_t first, std::int64_t count) const;
  /// Parts of equally many rows; Errc::invalid_argument when they do not divide (see pad_to_multiple).
  Result<std::vector<TensorDict>> split(std::int64_t parts) const;
  /// Repeats every row this many times: row by row, or the whole batch again and again.
  enum class Repeat : std::uint8_t { rows, batch };
  Result<TensorDict> repeat(std::int64_t times, Repeat order) const;
  /// Appends rows, from the first one on and cyclically, up to a multiple; also returns how many were added.
  Result<std::pair<TensorDict, std::int64_t>> pad_to_multiple(std::int64_t multiple) const;
  /// Removes the last rows, those that padding added.
  Result<TensorDict> unpad(std::int64_t rows) const { return slice(0, rows_ - rows); }

  /// Appends batches to each other. All must have the same names, dtypes and row shapes: Errc::mismatch names
  /// what differs. Values of the batch are merged; values with the same name must be equal, except that maps
  /// called "metrics" become one map of lists.
  static Result<TensorDict> concatenate(std::span<const TensorDict> parts);
  /// The union of both. A name in both must have the same bits: Errc::mismatch names one that does not.
  static Result<TensorDict> unite(const TensorDict& a, const TensorDict& b);

  friend bool operator==(const TensorDict& a, const TensorDict& b) {
    return a.rows_ == b.rows_ && a.tensors_ == b.tensors_ && a.arrays_ == b.arrays_ &&
           Value(a.meta_) == Value(b.meta_);
  }

 private:
  std::int64_t rows_ = 0;
  Tensors tensors_;
  Arrays arrays_;
  Value::Map meta_;
};

/// What an all-gather gives each member of a group, with members in group order: batches are concatenated,
/// values of the batch are the member's own. Errc::mismatch names the first name that differs between
/// members, and the members that lack it or have another dtype or shape.
Result<TensorDict> gather(std::span<const TensorDict> members, std::size_t self);

/// What happens to names that some members lack.
enum class MissingNames : std::uint8_t {
  shorter,  ///< their lists are shorter than the group, and no longer indexed by member
  refused,  ///< Errc::mismatch names one, and the member that lacks it
  null,     ///< null stands for members that lack it
};

/// Dictionaries of values become one dictionary of lists, in group order; names are in order of first
/// appearance. The values are unchanged.
Result<Value::Map> gather_values(std::span<const Value::Map> members, MissingNames missing);

}  // namespace troupe::core
