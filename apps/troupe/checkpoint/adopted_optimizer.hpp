#pragma once

#include <cstdint>
#include <optional>

#include "apps/files/renaming.hpp"
#include "apps/files/source.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// Gives the tensors of PyTorch's files Troupe's names (optimizer_names.hpp), so that a session goes on with
/// the moments, and returns how many steps the optimizer took, if it counts them. Names of parameters are
/// also changed by `rules`, which look at the names in the files first; their state follows them. Parameters
/// by number are found where their order says which they are (numbered_parameters.hpp). A parameter that has
/// no state, as it never had a gradient, gets moments of zero, with a note, and so is noted what took fewer
/// steps than others. What Troupe's optimizers do not keep stays under its name. Errc::invalid_argument when
/// there is no such state, when several optimizers have it, or when it belongs to parameters that are not
/// there.
core::Result<std::optional<std::int64_t>> from_torch_names(Source& source, Renaming& rules);

}  // namespace troupe::apps
