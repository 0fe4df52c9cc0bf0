#pragma once

#include <nlohmann/json.hpp>

#include "apps/gpt/text/tokenizer.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

// What a tokenizer.json does with text: before it is split, to split it, and after tokens became text again.
// Errors as read_tokenizer_json().

core::Result<void> read_normalizer(const nlohmann::json& json, TokenizerParts& parts);
/// Also says whether words are bytes.
core::Result<void> read_pre_tokenizer(const nlohmann::json& json, TokenizerParts& parts);
/// After the pre-tokenizer.
core::Result<void> read_decoder(const nlohmann::json& json, TokenizerParts& parts);

}  // namespace troupe::apps::gpt
