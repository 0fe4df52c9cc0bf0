#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/world/storage.hpp"
#include "actors/world/storage/posix.hpp"
#include "apps/files/torch_state.hpp"
#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/steps_missed.hpp"
#include "core/result.hpp"

namespace troupe::apps {

enum class SourceForm : std::uint8_t {
  troupe,
  dcp,           ///< torch.distributed.checkpoint: .metadata and *.distcp
  safetensors,   ///< a model of Hugging Face, or a sharded save of PyTorch in such files
  torch_shards,  ///< what every rank saved for itself with torch.save, as verl does
  torch_file,    ///< a state that torch.save wrote
  accelerate,    ///< a model and its optimizer in two of these, as Accelerate's FSDP saves them
};

/// "a checkpoint of Troupe", ...
std::string_view describe(SourceForm form) noexcept;

/// Something that a foreign checkpoint has and that cannot be carried over.
struct LeftOut {
  std::string key;
  std::string reason;
};

/// Tensors on disk and the values beside them. Files of others are described as if Troupe had written them,
/// except that their shards have no hashes (0) and that their files may lie in folders.
struct Source {
  SourceForm form = SourceForm::troupe;
  std::string path;  ///< of the directory, or of the one file
  std::unique_ptr<actors::Storage> storage;
  core::Manifest manifest;
  bool has_values = false;  ///< step, common values, objects and topology are known
  std::vector<LeftOut> left_out;
  /// What was done or found that nobody asked for, in sentences.
  std::vector<std::string> notes{};
  std::optional<std::int64_t> steps{};  ///< done, by a file beside the state
  core::StepsMissed steps_missed{};  ///< by parameters of an optimizer whose state was given Troupe's names
  /// Present for PyTorch's own forms, and for checkpoints that were imported from them.
  std::optional<TorchState> torch{};
};

/// A checkpoint of Troupe, or the newest whole one of a directory of them, which is then said on stderr, as
/// are damaged ones that are passed over. Its files have the right sizes. Errc::not_found for a path that
/// holds no checkpoint. Links below the path are refused unless `links` says otherwise.
core::Result<Source> open_checkpoint(const std::string& path, actors::Links links = actors::Links::refuse,
                                     actors::Reads reads = actors::Reads::through_cache);

/// A foreign checkpoint: a directory, or a single file of safetensors or of torch.save. Errc::not_found when
/// it is neither. `check` compares the elements of PyTorch's archives with their CRC-32.
core::Result<Source> open_foreign(const std::string& path, bool check,
                                  actors::Links links = actors::Links::refuse);

/// Either of them.
core::Result<Source> open_source(const std::string& path, actors::Links links = actors::Links::refuse);

using ByteSink = std::function<core::Result<void>(std::span<const std::byte>)>;

/// The elements of a box in row-major order as `dtype`, in pieces of `chunk_bytes` at most, which is all the
/// memory it takes, whatever the shards are. No hashes are checked.
core::Result<void> stream_box(const Source& source, const core::ManifestTensor& tensor, core::DType dtype,
                              const core::Box& box, std::size_t chunk_bytes, const ByteSink& sink);

inline constexpr std::size_t kStreamBytes = std::size_t{16} << 20;

}  // namespace troupe::apps
