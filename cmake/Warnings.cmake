# Flags of our own code. -ffp-contract=off: a fused multiply-add appears only where the source asks for one, so that results do
# not depend on what the compiler felt like.
add_library(kdelta_flags INTERFACE)
target_compile_features(kdelta_flags INTERFACE cxx_std_20)
target_include_directories(kdelta_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(kdelta_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
    -Wno-missing-field-initializers -ffp-contract=off>)
if(KDELTA_WERROR)
  target_compile_options(kdelta_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(KDELTA_SANITIZE)
  # A target with KDELTA_NOT_SANITIZED is left as it is. -g1: lines are what a report needs, and descriptions of variables
  # are a third of the compile time.
  target_compile_options(kdelta_flags INTERFACE $<$<NOT:$<BOOL:$<TARGET_PROPERTY:KDELTA_NOT_SANITIZED>>>:-fsanitize=${KDELTA_SANITIZE}>
    -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  target_link_options(kdelta_flags INTERFACE -fsanitize=${KDELTA_SANITIZE})
endif()
