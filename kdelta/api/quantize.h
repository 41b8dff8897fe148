// A checkpoint in smaller formats: KDA q|k|v and routed experts become MXFP8, MXFP4 or int8, everything else is copied
// byte for byte. Names, dtypes and `quantization_config` are those of the releases and of compressed-tensors
// checkpoints, so other engines read the result. Includes nothing but the standard library.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kdelta {

struct QuantizeOptions {
  std::string model;  // directory of the source; BF16 and F32 matrices are quantised, those of the wanted format copied
  std::string out;    // a new name or an empty folder; grows as OUT.partial, where the same job goes on when run again
  // "mxfp8": weight F8_E4M3 [out, in] and weight_scale U8 [out, in/32]. "mxfp4": weight_packed U8 [out, in/2] and
  // weight_scale. "int8": weight I8 [out, in] and weight_scale F32 [out, 1], the row's largest magnitude / 127, for
  // other engines: this one refuses to load it. "keep": as in the source.
  std::string qkv = "mxfp8", experts = "mxfp4";
  // Scale rules of kdelta/ops/mx_quant/mx_quant.h: "floor", "rceil", "even". The rule of activations is recorded for
  // the engine that runs the result, this one or another; it changes no weight.
  std::string weight_rule = "rceil", activation_rule = "floor";
  int threads = 0;  // 0: every CPU this process may use
  // Nothing is written. With `out`, what a run would refuse before it reads a tensor is refused as well.
  bool dry_run = false;
  std::function<void(int64_t done, int64_t total)> progress;  // bytes of the source
  const std::atomic<bool>* cancel = nullptr;                  // looked at after every piece; throws
};

struct QuantizeReport {
  struct Group {
    std::string name, format;  // "KDA q|k|v", "MXFP8"; of what is left "MXFP8 already" or "as it is"
    int64_t matrices = 0, bytes_before = 0, bytes_after = 0;
  };
  std::vector<Group> groups;                  // what is quantised, what is left of the same groups, "the rest"
  int64_t bytes_before = 0, bytes_after = 0;  // of tensors
  // Of the files, a dry run counts as kept what an earlier run says it finished, without reading it.
  int64_t files = 0, files_kept = 0;  // kept: finished by an earlier run, byte for byte as it left them
  int64_t files_redone = 0;           // there as well, but not as an earlier run left them
  int64_t buffer_bytes = 0;           // working memory beside the mapped source
};

// Throws Error(invalid_argument) naming the option for a wrong format, rule or name, and when nothing would be
// quantised, when `out` exists and when OUT.partial is of another run or has a file that this one does not make;
// Error(bad_file) naming the tensor that is not finite, that has a width no multiple of 32 (MX formats), or that is
// already quantised another way, or the shard that is named as one of quantize's own files; Error(failed) when the disk
// refuses or `cancel` is set.
QuantizeReport quantize(const QuantizeOptions& options);

}  // namespace kdelta
