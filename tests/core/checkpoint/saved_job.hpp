#pragma once

#include <rapidcheck.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/load_plan.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/save_plan.hpp"
#include "core/element_range.hpp"
#include "core/hash.hpp"

namespace troupe::core {

using Bytes = std::vector<std::byte>;
using Tensor = SaveStructure::Tensor;

inline std::span<const std::byte> bytes_in(std::string_view text) {
  return std::as_bytes(std::span(text));
}

inline std::vector<const SaveStructure*> views_of(const std::vector<SaveStructure>& structures) {
  std::vector<const SaveStructure*> views;
  for (const auto& structure : structures) views.push_back(&structure);
  return views;
}

/// Content that differs between tensors and between their bytes.
inline Bytes content_of(const Tensor& tensor) {
  Bytes bytes(static_cast<std::size_t>(elements_of(tensor.shape)) * size_of(tensor.dtype));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(hash64(tensor.key, i));
  }
  return bytes;
}

/// The bytes of a box of a tensor, element by element.
inline Bytes part_of(const Bytes& whole, const Shape& shape, const Box& box, std::size_t width) {
  Bytes part;
  for (std::int64_t i = 0; i < box.elements(); ++i) {
    std::int64_t rest = i;
    std::int64_t at = 0;
    std::int64_t stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      at += (box.offset[axis] + rest % box.extent[axis]) * stride;
      rest /= box.extent[axis];
      stride *= shape[axis];
    }
    const auto begin = whole.begin() + at * static_cast<std::ptrdiff_t>(width);
    part.insert(part.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
  }
  return part;
}

struct SavedJob {
  Manifest manifest;
  std::map<std::string, Bytes> files;
};

/// Carries out a save's plan in memory.
inline SavedJob save(const std::vector<SaveStructure>& structures, const SavePlan& plan,
                     const std::function<Bytes(const Tensor&)>& content = content_of) {
  SavedJob saved;
  std::vector<WrittenShards> written(structures.size());
  for (std::size_t rank = 0; rank < structures.size(); ++rank) {
    const auto& structure = structures[rank];
    const Rank number{static_cast<std::int32_t>(rank)};
    for (const auto& planned : plan_files(structure, plan.assigned[rank], number)) {
      const auto header = bytes_in(planned.header);
      Bytes file(header.begin(), header.end());
      for (const auto& shard : planned.shards) {
        const auto& piece = structure.pieces[shard.piece];
        const auto& tensor = structure.tensors[piece.tensor];
        const auto part = part_of(content(tensor), tensor.shape, piece.box, size_of(tensor.dtype));
        file.insert(file.end(), part.begin(), part.end());
        written[rank].hashes.push_back(hash64(part));
      }
      saved.files[planned.name] = std::move(file);
    }
  }
  saved.manifest = manifest_of(views_of(structures), plan, written);
  saved.manifest.step = StepCount{7};
  saved.manifest.save = hex64(0x0123456789abcdef);
  return saved;
}

/// Carries out a load's plan in memory, which holds other bytes before.
inline std::vector<Bytes> load(const SavedJob& saved, const LoadPlan& plan,
                               const std::vector<LoadTarget>& targets) {
  std::vector<Bytes> loaded;
  for (const auto& target : targets) {
    loaded.emplace_back(static_cast<std::size_t>(target.box.elements()) * size_of(target.dtype),
                        std::byte{0xee});
  }
  for (auto target : plan.zero) std::fill(loaded[target].begin(), loaded[target].end(), std::byte{0});
  for (const auto& read : plan.reads) {
    const auto width = static_cast<std::int64_t>(size_of(read.tensor->dtype));
    const auto& file = saved.files.at(saved.manifest.files[read.shard->file].name);
    const auto shard = file.begin() + static_cast<std::ptrdiff_t>(read.shard->begin);
    for (const auto& copy : read.copies) {
      for (const auto& run : copy_runs(read.shard->box, targets[copy.target].box, copy.region)) {
        std::copy_n(shard + run.from * width, run.elements * width,
                    loaded[copy.target].begin() + run.to * width);
      }
    }
  }
  return loaded;
}

/// From `least` to `most`, as likely in the first case as in the last.
inline std::int64_t between(std::int64_t least, std::int64_t most) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::int64_t>(least, most + 1));
}

inline Shape any_shape() {
  Shape shape;
  for (auto axes = between(0, 5); axes > 0; --axes) shape.push_back(between(0, 15) == 0 ? 0 : between(1, 4));
  return shape;
}

inline std::string any_key(std::size_t number) {
  const auto odd = *rc::gen::element<std::string>("", "w", "a/b", "\"quoted\"", "back\\slash", "\u00e9\u4e2d",
                                                  "new\nline", "{}");
  return odd + (number == 0 ? "" : std::to_string(number));
}

/// Consecutive ranges that cover [0, size), some of them empty.
inline std::vector<ElementRange> any_cuts(std::int64_t size, std::size_t parts) {
  std::vector<std::int64_t> cuts{0, size};
  while (cuts.size() < parts + 1) cuts.push_back(between(0, size));
  std::sort(cuts.begin(), cuts.end());
  std::vector<ElementRange> ranges;
  for (std::size_t i = 0; i < parts; ++i) ranges.push_back({cuts[i], cuts[i + 1]});
  return ranges;
}

/// Gives every rank a part of the tensor: a flat range, a slice along an axis, or all of it.
inline void share(const Tensor& tensor, std::vector<SaveStructure>& structures) {
  const auto ranks = structures.size();
  const bool flat = between(0, 1) == 0;
  const auto axis = static_cast<std::size_t>(between(0, static_cast<std::int64_t>(tensor.shape.size())));
  const bool sliced = !flat && axis < tensor.shape.size();
  const auto cuts = any_cuts(sliced ? tensor.shape[axis] : elements_of(tensor.shape), ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::vector<Box> boxes;
    if (flat) boxes = boxes_of_range(tensor.shape, cuts[rank]);
    if (!flat && (sliced || rank == 0 || between(0, 1) == 0)) boxes.push_back(Box::whole(tensor.shape));
    if (sliced) {
      boxes[0].offset[axis] = cuts[rank].start;
      boxes[0].extent[axis] = cuts[rank].size();
    }
    if (boxes.empty() && between(0, 1) == 0) continue;
    auto& structure = structures[rank];
    const auto number = static_cast<std::uint32_t>(structure.tensors.size());
    structure.tensors.push_back(tensor);
    for (auto& box : boxes) structure.pieces.push_back({number, std::move(box)});
  }
}

struct AnyJob {
  std::vector<Tensor> tensors;
  std::vector<SaveStructure> structures;
};

inline AnyJob any_job() {
  AnyJob job;
  job.structures.resize(static_cast<std::size_t>(between(1, 5)));
  const auto count = static_cast<std::size_t>(between(0, 4));
  for (std::size_t i = 0; i < count; ++i) {
    const auto dtype = static_cast<DType>(between(0, 14));
    job.tensors.push_back({any_key(i), dtype, any_shape()});
    share(job.tensors.back(), job.structures);
  }
  // What nobody listed is not part of the job.
  std::erase_if(job.tensors, [&](const Tensor& tensor) {
    return std::none_of(job.structures.begin(), job.structures.end(), [&](const SaveStructure& structure) {
      return std::find(structure.tensors.begin(), structure.tensors.end(), tensor) != structure.tensors.end();
    });
  });
  return job;
}

}  // namespace troupe::core
