#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "apps/gpt/text/text_codec.hpp"
#include "core/result.hpp"

namespace troupe::apps::gpt {

/// Tokens of one text, where ~t is token t, not to be learned.
using Document = std::vector<std::int32_t>;

/// Errc::invalid_argument names a token that is not below `vocabulary`, and its text.
core::Result<void> check_tokens(std::span<const std::int32_t> tokens, std::size_t vocabulary,
                                const TextCodec& codec);

/// One document per line of JSONL. {"text": ...}, all of which is learned, or {"prompt": ..., "completion":
/// ...}, of which only the completion is: such a document begins with the codec's special tokens and ends
/// with its end of text. Or {"tokens": [...]}, as any tokenizer made them, to which nothing is added; with
/// {"labels": [...]}, of the same length, those with -100 are not learned, and others repeat the token. Other
/// members are ignored. Errc::corrupt names a line in none of these forms, Errc::invalid_argument one with a
/// token that is not below `vocabulary`.
core::Result<std::vector<Document>> read_documents(std::string_view jsonl, TextCodec& codec,
                                                   std::size_t vocabulary);

/// Rows of `row` tokens, one after another, that hold all documents: each document goes into the first of the
/// last few rows that has room for it, whole unless it is longer than a row; then its pieces overlap by one
/// token. The first token of a document, or of a piece, is not learned. Rows are padded with `padding`, which
/// is not learned either. Rows of which nothing is learned are left out.
std::vector<std::int32_t> pack_documents(const std::vector<Document>& documents, std::size_t row,
                                         std::int32_t padding);

}  // namespace troupe::apps::gpt
