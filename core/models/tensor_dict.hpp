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

/// A tensor in memory of the host, row-major.
struct HostTensor {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> bytes;

  friend bool operator==(const HostTensor&, const HostTensor&) = default;
};

/// A batch of named tensors: axis 0 of each is the batch. Beside them are arrays with one value per row, and
/// values of the whole batch. All operations give a new dictionary; bytes are copied.
class TensorDict {
 public:
  using Tensors = std::map<std::string, HostTensor>;
  using Arrays = std::map<std::string, std::vector<Value>>;

  TensorDict() = default;
  /// Errc::invalid_argument names a tensor without a batch axis or whose bytes are not its shape's, and two
  /// that have batches of other lengths, or one name. Without tensors and arrays the batch has no rows.
  static Result<TensorDict> create(Tensors tensors, Arrays arrays = {}, Value::Map meta = {});

  std::int64_t rows() const { return rows_; }
  const Tensors& tensors() const { return tensors_; }
  const Arrays& arrays() const { return arrays_; }
  const Value::Map& meta() const { return meta_; }

  /// These rows in this order; a row may come often. Errc::invalid_argument for one that is not there.
  Result<TensorDict> take(std::span<const std::int64_t> rows) const;
  /// Rows [first, first + count).
  Result<TensorDict> slice(std::int64_t first, std::int64_t count) const;
  /// As many rows in every part; Errc::invalid_argument when they do not divide (see pad_to_multiple).
  Result<std::vector<TensorDict>> split(std::int64_t parts) const;
  /// Every row this many times: one after the other, or the whole batch again and again.
  enum class Repeat : std::uint8_t { rows, batch };
  Result<TensorDict> repeat(std::int64_t times, Repeat order) const;
  /// Rows from the first one on, again and again, until the number is a multiple; and how many were added.
  Result<std::pair<TensorDict, std::int64_t>> pad_to_multiple(std::int64_t multiple) const;
  /// Without the last rows, as they were added.
  Result<TensorDict> unpad(std::int64_t rows) const { return slice(0, rows_ - rows); }

  /// One batch behind the other. All have the same names, dtypes and shapes of a row: Errc::mismatch names
  /// what differs. Values of the batch are merged; of two with one name both must be equal, except that maps
  /// called "metrics" become one map of lists.
  static Result<TensorDict> concatenate(std::span<const TensorDict> parts);
  /// What both have. A name that both have must mean the same bits: Errc::mismatch names one that does not.
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

/// What an all-gather gives each member of a group, whose members come in group order: batches are
/// concatenated, values of the batch are the member's own. Errc::mismatch names the first name that members
/// have differently, and the members: those without it, or with another dtype or shape.
Result<TensorDict> gather(std::span<const TensorDict> members, std::size_t self);

/// What becomes of names that some members do not have.
enum class MissingNames : std::uint8_t {
  shorter,  ///< their lists are shorter than the group, and no longer indexed by member
  refused,  ///< Errc::mismatch names one, and who lacks it
  null,     ///< null stands for members without it
};

/// Dictionaries of values become one of lists, in group order; names in the order in which they first appear.
/// Values stay what they are.
Result<Value::Map> gather_values(std::span<const Value::Map> members, MissingNames missing);

}  // namespace troupe::core
