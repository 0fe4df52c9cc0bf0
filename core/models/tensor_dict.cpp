#include "core/models/tensor_dict.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

Shape row_shape(const HostTensor& tensor) {
  return {tensor.shape.begin() + 1, tensor.shape.end()};
}

std::size_t row_bytes(const HostTensor& tensor) {
  return static_cast<std::size_t>(elements_of(row_shape(tensor))) * size_of(tensor.dtype);
}

std::string described(const HostTensor& tensor) {
  return fmt::format("{} rows of {}", name_of(tensor.dtype), to_string(row_shape(tensor)));
}

/// "0, 2".
std::string listed(const std::vector<std::size_t>& members) {
  std::string text;
  for (const auto member : members) text += (text.empty() ? "" : ", ") + std::to_string(member);
  return text;
}

/// A name that some have and others lack, or that differs between them.
template <class Table, class Describe>
Result<void> check_same(std::span<const TensorDict> parts, const Table& table_of, const Describe& describe) {
  std::set<std::string> names;
  for (const auto& part : parts) {
    for (const auto& [name, value] : table_of(part)) names.insert(name);
  }
  for (const auto& name : names) {
    std::vector<std::size_t> without;
    std::map<std::string, std::vector<std::size_t>> kinds;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto& table = table_of(parts[i]);
      const auto found = table.find(name);
      if (found == table.end()) {
        without.push_back(i);
      } else {
        kinds[describe(found->second)].push_back(i);
      }
    }
    if (!without.empty())
      return fail(Errc::mismatch, "'{}' is missing at members {}; all must have the same names", name,
                  listed(without));
    if (kinds.size() > 1)
      return fail(Errc::mismatch, "'{}' is {} at members {} but {} at members {}", name, kinds.begin()->first,
                  listed(kinds.begin()->second), kinds.rbegin()->first, listed(kinds.rbegin()->second));
  }
  return {};
}

Result<void> check_alike(std::span<const TensorDict> parts) {
  TRY(check_same(
      parts, [](const TensorDict& part) -> auto& { return part.tensors(); }, described));
  return check_same(
      parts, [](const TensorDict& part) -> auto& { return part.arrays(); },
      [](const std::vector<Value>&) { return std::string("an array"); });
}

constexpr const char* kMetrics = "metrics";

/// Appends each value of a map to a list.
void collect_metrics(Value::Map& lists, const Value::Map& metrics) {
  for (const auto& [key, value] : metrics.entries()) {
    auto* list = lists.find(key);
    if (list == nullptr) {
      lists.set(key, Value::List{value});
    } else if (list->as_list() != nullptr) {
      list->as_list()->push_back(value);
    }
  }
}

Result<Value::Map> merge_meta(std::span<const TensorDict> parts) {
  Value::Map merged;
  Value::Map metrics;
  bool has_metrics = false;
  for (const auto& part : parts) {
    for (const auto& [key, value] : part.meta().entries()) {
      if (key == Key(kMetrics) && value.as_map() != nullptr) {
        collect_metrics(metrics, *value.as_map());
        has_metrics = true;
        continue;
      }
      const auto* known = merged.find(key);
      if (known == nullptr) {
        merged.set(key, value);
      } else if (!(*known == value)) {
        return fail(Errc::mismatch, "batches have other values of {}", to_string(key));
      }
    }
  }
  if (has_metrics) merged.set(kMetrics, std::move(metrics));
  return merged;
}

/// Concatenates batches without their values.
Result<TensorDict> join(std::span<const TensorDict> parts, Value::Map meta) {
  TensorDict::Tensors tensors;
  TensorDict::Arrays arrays;
  for (const auto& part : parts) {
    for (const auto& [name, tensor] : part.tensors()) {
      auto [joined, is_new] = tensors.try_emplace(name, tensor);
      if (is_new) continue;
      joined->second.shape[0] += tensor.shape[0];
      joined->second.bytes.insert(joined->second.bytes.end(), tensor.bytes.begin(), tensor.bytes.end());
    }
    for (const auto& [name, values] : part.arrays()) {
      auto& joined = arrays[name];
      joined.insert(joined.end(), values.begin(), values.end());
    }
  }
  return TensorDict::create(std::move(tensors), std::move(arrays), std::move(meta));
}

}  // namespace

Result<TensorDict> TensorDict::create(Tensors tensors, Arrays arrays, Value::Map meta) {
  TensorDict dict;
  const std::string* first = nullptr;
  const auto check_rows = [&](const std::string& name, std::int64_t rows) -> Result<void> {
    if (first != nullptr && rows != dict.rows_)
      return fail(Errc::invalid_argument, "'{}' has {} rows, '{}' has {}", name, rows, *first, dict.rows_);
    if (first == nullptr) first = &name;
    dict.rows_ = rows;
    return {};
  };
  for (const auto& [name, tensor] : tensors) {
    const auto good = check_shape(tensor.shape);
    if (!good) return fail(good.error().code, "tensor '{}': {}", name, good.error().message);
    if (tensor.shape.empty())
      return fail(Errc::invalid_argument, "tensor '{}' is a scalar; a batch needs an axis", name);
    const auto bytes = static_cast<std::uint64_t>(elements_of(tensor.shape)) * size_of(tensor.dtype);
    if (tensor.bytes.size() != bytes)
      return fail(Errc::invalid_argument, "tensor '{}' of shape {} and dtype {} needs {} bytes, it has {}",
                  name, to_string(tensor.shape), name_of(tensor.dtype), bytes, tensor.bytes.size());
    TRY(check_rows(name, tensor.shape[0]));
  }
  for (const auto& [name, values] : arrays) {
    if (tensors.contains(name))
      return fail(Errc::invalid_argument, "'{}' is the name of a tensor and of an array", name);
    TRY(check_rows(name, static_cast<std::int64_t>(values.size())));
  }
  dict.tensors_ = std::move(tensors);
  dict.arrays_ = std::move(arrays);
  dict.meta_ = std::move(meta);
  return dict;
}

Result<TensorDict> TensorDict::take(std::span<const std::int64_t> rows) const {
  for (const auto row : rows) {
    if (row < 0 || row >= rows_)
      return fail(Errc::invalid_argument, "row {} is not one of the {} rows of the batch", row, rows_);
  }
  TensorDict taken;
  taken.rows_ = tensors_.empty() && arrays_.empty() ? 0 : static_cast<std::int64_t>(rows.size());
  taken.meta_ = meta_;
  for (const auto& [name, tensor] : tensors_) {
    auto& made = taken.tensors_[name];
    made.dtype = tensor.dtype;
    made.shape = tensor.shape;
    made.shape[0] = taken.rows_;
    const auto width = row_bytes(tensor);
    made.bytes.reserve(width * rows.size());
    for (const auto row : rows) {
      const auto begin = tensor.bytes.begin() + static_cast<std::ptrdiff_t>(width) * row;
      made.bytes.insert(made.bytes.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
    }
  }
  for (const auto& [name, values] : arrays_) {
    auto& made = taken.arrays_[name];
    for (const auto row : rows) made.push_back(values[static_cast<std::size_t>(row)]);
  }
  return taken;
}

Result<TensorDict> TensorDict::slice(std::int64_t first, std::int64_t count) const {
  if (first < 0 || count < 0 || first > rows_ || count > rows_ - first)
    return fail(Errc::invalid_argument, "{} rows from {} on are not in a batch of {}", count, first, rows_);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), first);
  return take(rows);
}

Result<std::vector<TensorDict>> TensorDict::split(std::int64_t parts) const {
  if (parts < 1 || rows_ % parts != 0)
    return fail(Errc::invalid_argument, "{} rows do not divide into {} parts; pad the batch first", rows_,
                parts);
  std::vector<TensorDict> result;
  const auto count = rows_ / parts;
  for (std::int64_t part = 0; part < parts; ++part) result.push_back(TRY(slice(part * count, count)));
  return result;
}

Result<TensorDict> TensorDict::repeat(std::int64_t times, Repeat order) const {
  if (times < 0 || (rows_ > 0 && times > (std::int64_t{1} << 40) / rows_))
    return fail(Errc::invalid_argument, "a batch of {} rows cannot be repeated {} times", rows_, times);
  std::vector<std::int64_t> rows;
  rows.reserve(static_cast<std::size_t>(rows_ * times));
  for (std::int64_t i = 0; i < rows_ * times; ++i)
    rows.push_back(order == Repeat::rows ? i / times : i % rows_);
  return take(rows);
}

Result<std::pair<TensorDict, std::int64_t>> TensorDict::pad_to_multiple(std::int64_t multiple) const {
  if (multiple < 1 || rows_ == 0)
    return fail(Errc::invalid_argument, "a batch of {} rows cannot be padded to a multiple of {}", rows_,
                multiple);
  const auto added = (multiple - rows_ % multiple) % multiple;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(rows_ + added));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i) % rows_;
  return std::pair{TRY(take(rows)), added};
}

Result<TensorDict> TensorDict::concatenate(std::span<const TensorDict> parts) {
  TRY(check_alike(parts));
  return join(parts, TRY(merge_meta(parts)));
}

Result<TensorDict> TensorDict::unite(const TensorDict& a, const TensorDict& b) {
  auto tensors = a.tensors_;
  for (const auto& [name, tensor] : b.tensors_) {
    const auto [known, is_new] = tensors.try_emplace(name, tensor);
    if (!is_new && !(known->second == tensor))
      return fail(Errc::mismatch, "both have a tensor '{}', and not the same", name);
  }
  auto arrays = a.arrays_;
  for (const auto& [name, values] : b.arrays_) {
    const auto [known, is_new] = arrays.try_emplace(name, values);
    if (!is_new && !(known->second == values))
      return fail(Errc::mismatch, "both have an array '{}', and not the same", name);
  }
  auto meta = a.meta_;
  for (const auto& [key, value] : b.meta_.entries()) {
    const auto* known = meta.find(key);
    if (known != nullptr && !(*known == value))
      return fail(Errc::mismatch, "both have a value {}, and not the same", to_string(key));
    meta.set(key, value);
  }
  return create(std::move(tensors), std::move(arrays), std::move(meta));
}

Result<TensorDict> gather(std::span<const TensorDict> members, std::size_t self) {
  if (self >= members.size())
    return fail(Errc::invalid_argument, "member {} is not one of the {}", self, members.size());
  TRY(check_alike(members));
  const auto rows = members[self].rows();
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].rows() != rows)
      return fail(Errc::mismatch, "member {} has {} rows, member {} has {}; pad them first", i,
                  members[i].rows(), self, rows);
  }
  return join(members, members[self].meta());
}

Result<Value::Map> gather_values(std::span<const Value::Map> members, MissingNames missing) {
  Value::Map gathered;
  for (const auto& member : members) {
    for (const auto& entry : member.entries()) {
      if (gathered.find(entry.key) == nullptr) gathered.set(entry.key, Value::List{});
    }
  }
  std::vector<Key> names;
  for (const auto& entry : gathered.entries()) names.push_back(entry.key);
  for (const auto& name : names) {
    auto& list = *gathered.find(name)->as_list();
    for (std::size_t i = 0; i < members.size(); ++i) {
      const auto* value = members[i].find(name);
      if (value == nullptr && missing == MissingNames::refused)
        return fail(Errc::mismatch, "{} is missing at member {}; all must have the same names",
                    to_string(name), i);
      if (value != nullptr) {
        list.push_back(*value);
      } else if (missing == MissingNames::null) {
        list.emplace_back(nullptr);
      }
    }
  }
  return gathered;
}

}  // namespace troupe::core
