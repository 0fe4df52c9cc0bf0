#pragma once

#include <string>

#include "apps/files/source.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// The file of a rank in a directory that verl's FSDP trainers write, "model_world_size_4_rank_0.pt".
inline constexpr const char* kTorchShardsExample = "model_world_size_4_rank_0.pt";

bool holds_torch_shards(const std::string& directory);

/// A directory in which every rank saved its state dicts for itself, as verl's FSDP trainers do:
/// model_world_size_W_rank_R.pt, optim_world_size_W_rank_R.pt or none of these, and fsdp_config.json where
/// several W are there. Weights keep their names; what the optimizer keeps of w is
/// "optimizer.state.w.exp_avg". What ranks should have in common is compared: plain tensors always, replicas
/// of a mesh with `check`, which also compares all with their CRC-32. Errc::corrupt names what is missing,
/// differs or does not fit together.
core::Result<Source> open_torch_shards(const std::string& directory, bool check, actors::Links links);

}  // namespace troupe::apps
