/* SPDX-License-Identifier: Apache-2.0 */
/* JSON scalars. Command lines and sysfs files may hold any bytes, so UTF-8 is checked here and not assumed. */
#include "json_out.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static bool continues(const unsigned char *s, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return false;
    return true;
}

/* Length of the UTF-8 sequence at s; 0 if there is none (RFC 3629: no overlong forms, no surrogates). */
static size_t utf8_length(const unsigned char *s)
{
    if (s[0] < 0x80)
        return 1;
    if (s[0] >= 0xc2 && s[0] <= 0xdf)
        return continues(s + 1, 1) ? 2 : 0;
    if (s[0] >= 0xe0 && s[0] <= 0xef) {
        bool overlong = s[0] == 0xe0 && s[1] < 0xa0, surrogate = s[0] == 0xed && s[1] > 0x9f;
        return continues(s + 1, 2) && !overlong && !surrogate ? 3 : 0;
    }
    if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        bool overlong = s[0] == 0xf0 && s[1] < 0x90, too_large = s[0] == 0xf4 && s[1] > 0x8f;
        return continues(s + 1, 3) && !overlong && !too_large ? 4 : 0;
    }
    return 0;
}

void json_out_string(FILE *file, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t n;
    fputc('"', file);
    for (; *s; s += n ? n : 1) {
        n = utf8_length(s);
        if (n == 0)
            fputs("\\ufffd", file);
        else if (*s == '"' || *s == '\\')
            fprintf(file, "\\%c", *s);
        else if (*s < 0x20 || *s == 0x7f)
            fprintf(file, "\\u%04x", (unsigned)*s);
        else
            fwrite(s, 1, n, file);
    }
    fputc('"', file);
}

void json_out_number(FILE *file, double value)
{
    if (isfinite(value))
        fprintf(file, "%.9g", value);
    else
        fputs("null", file);
}

static const char *skip_digits(const char *s)
{
    return s + strspn(s, "0123456789");
}

/* -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)? */
static bool is_number(const char *s)
{
    const char *digits = s + (*s == '-'), *end = skip_digits(digits);
    if (end == digits || (*digits == '0' && end - digits > 1))
        return false;
    if (*end == '.') {
        digits = end + 1;
        end = skip_digits(digits);
        if (end == digits)
            return false;
    }
    if (*end == 'e' || *end == 'E') {
        digits = end + 1 + (end[1] == '+' || end[1] == '-');
        end = skip_digits(digits);
        if (end == digits)
            return false;
    }
    return *end == '\0';
}

void json_out_scalar(FILE *file, const char *text)
{
    if (is_number(text))
        fputs(text, file);
    else
        json_out_string(file, text);
}
