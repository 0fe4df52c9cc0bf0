#include "core/layout/row_layout.hpp"

#include <algorithm>
#include <functional>
#include <list>
#include <numeric>

#include <fmt/ranges.h>

#include "core/errors.hpp"
#include "core/layout/arithmetic.hpp"

namespace troupe::core {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 50;

struct Item {
  std::size_t tensor;
  std::int64_t row;
  std::int64_t elements;
};

/// Empty if the product is above kMostElements.
std::optional<std::int64_t> bounded_product(std::int64_t a, std::int64_t b) {
  if (a > kMostElements / b) return std::nullopt;
  return a * b;
}

Result<Item> measure(std::size_t tensor, const std::vector<std::int64_t>& shape) {
  if (shape.empty()) {
    return fail(Errc::invalid_argument,
                "tensor {} has no dimension, so it has no rows to shard; make it a vector of one element",
                tensor);
  }
  std::optional<std::int64_t> elements = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 1) {
      return fail(Errc::invalid_argument, "tensor {} of shape {} is empty; every extent is at least 1",
                  tensor, fmt::join(shape, "x"));
    }
    elements = bounded_product(*elements, extent);
    if (!elements) {
      return fail(Errc::invalid_argument, "tensor {} of shape {} has more than {} elements", tensor,
                  fmt::join(shape, "x"), kMostElements);
    }
  }
  return Item{tensor, *elements / shape[0], *elements};
}

/// Shard boundaries are multiples of the chunk, the least common multiple of all rows.
class RowPacker {
 public:
  RowPacker(std::size_t tensors, std::int64_t chunk) : chunk_(chunk), offsets_(tensors) {}

  void pack(const std::vector<Item>& items) {
    std::list<Item> regular;
    for (const Item& item : items) {
      (item.elements >= chunk_ ? regular : fragments_).push_back(item);
    }
    fragments_.sort([](const Item& a, const Item& b) { return a.elements > b.elements; });
    while (!regular.empty()) {
      const Item item = regular.front();
      regular.pop_front();
      place_regular(item, regular);
    }
    for (const Item& item : fragments_) {
      offsets_[item.tensor] = round_up(next_, item.row);
      next_ = offsets_[item.tensor] + item.elements;
    }
  }

  std::int64_t end() const { return next_; }
  std::vector<std::int64_t> take_offsets() { return std::move(offsets_); }

 private:
  void place_regular(const Item& item, std::list<Item>& later) {
    offsets_[item.tensor] = next_;
    ElementRange gap{next_ + item.elements, round_up(next_ + item.elements, chunk_)};
    next_ = gap.end;
    if (gap.size() == 0) return;
    // Another tensor's odd head may be at the end of the gap, followed by its even rest.
    const auto partner = std::find_if(later.begin(), later.end(), [&](const Item& other) {
      const std::int64_t head = other.elements % chunk_;
      return head > 0 && head <= gap.size();
    });
    if (partner != later.end()) {
      gap.end -= partner->elements % chunk_;
      offsets_[partner->tensor] = gap.end;
      next_ = gap.end + partner->elements;
      later.erase(partner);
    }
    fill(gap);
  }

  void fill(ElementRange gap) {
    for (auto item = fragments_.begin(); item != fragments_.end();) {
      const std::int64_t start = round_up(gap.start, item->row);
      if (start + item->elements > gap.end) {
        ++item;
        continue;
      }
      offsets_[item->tensor] = start;
      gap.start = start + item->elements;
      item = fragments_.erase(item);
    }
  }

  std::int64_t chunk_;
  std::vector<std::int64_t> offsets_;
  std::list<Item> fragments_;  // unplaced tensors of less than one chunk, largest first
  std::int64_t next_ = 0;
};

}  // namespace

Result<RowLayout> row_aligned_layout(const std::vector<std::vector<std::int64_t>>& shapes, int shards) {
  if (shards < 1 || shards > kMostElements) {
    return fail(Errc::invalid_argument, "rows are sharded over at least 1 rank, not over {}", shards);
  }
  std::vector<Item> items;
  std::optional<std::int64_t> chunk = 1;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    items.push_back(TRY(measure(i, shapes[i])));
    total += items.back().elements;
    chunk = bounded_product(*chunk, items.back().row / std::gcd(*chunk, items.back().row));
    if (!chunk || total > kMostElements || !bounded_product(*chunk, shards)) {
      return fail(Errc::invalid_argument,
                  "the rows of the tensors up to {} have a common multiple, or a total, above {} elements; "
                  "shard tensors with so different rows in separate buffers",
                  i, kMostElements);
    }
  }
  RowPacker packer(shapes.size(), *chunk);
  packer.pack(items);
  RowLayout layout;
  layout.elements = round_up(packer.end(), *chunk * shards);
  layout.offsets = packer.take_offsets();
  layout.shapes = shapes;
  layout.shards = shards;
  return layout;
}

ElementRange local_rows(const RowLayout& layout, int tensor, int shard) {
  CHECK(shard >= 0 && shard < layout.shards, "a shard is one of the layout's");
  const auto& shape = layout.shapes.at(static_cast<std::size_t>(tensor));
  const std::int64_t row =
      std::accumulate(shape.begin() + 1, shape.end(), std::int64_t{1}, std::multiplies<>{});
  const std::int64_t offset = layout.offsets[static_cast<std::size_t>(tensor)];
  const std::int64_t size = layout.elements / layout.shards;
  const auto row_at = [&](std::int64_t position) {
    return std::clamp<std::int64_t>((position - offset) / row, 0, shape[0]);
  };
  return {row_at(shard * size), row_at((shard + 1) * size)};
}

}  // namespace troupe::core
