#pragma once

#include <cstddef>
#include <cstdio>
#include <string>

#include "apps/gpt/text/text_codec.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// Writes the tokens of a file as documents of token ids, as read_documents() takes them: a line for each of
/// its lines, with the tokens that the tokenizer puts around a text, or for each document of *.jsonl.
core::Result<void> print_tokens(const std::string& path, TextCodec& codec, std::size_t vocabulary,
                                std::FILE* out);

}  // namespace troupe::apps::gpt
