#pragma once

#include <string>
#include <string_view>

#include "apps/files/nested_state.hpp"
#include "apps/files/source.hpp"
#include "core/result.hpp"
#include "core/values/key_path.hpp"

namespace troupe::apps {

/// Whether a file of this name is one that torch.save usually writes: *.pt, *.pth, *.bin, *.ckpt.
bool is_torch_file_name(std::string_view name);

/// Adds the state in a file that torch.save wrote, nested below `above`, taken apart as
/// torch.distributed.checkpoint takes one apart: dicts, and lists that have tensors or dicts in them. What is
/// neither a tensor nor plain data is left out, by name; nothing is executed. `check` compares the elements
/// with their CRC-32. Errc::unavailable for a file that is older than PyTorch 1.6.
core::Result<void> add_torch_file(NestedState& state, const std::string& name, core::KeyPath above,
                                  bool check);

/// One such file. The path itself may be a link.
core::Result<Source> open_torch_file(const std::string& path, bool check);

}  // namespace troupe::apps
