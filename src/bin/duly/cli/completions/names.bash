
# Completes names of tasks, from the database that the command line names. Names may contain a colon or an at sign, at which
# bash splits words: the part before the last separator must not be repeated.
_duly_names() {
    local line="${COMP_LINE:0:COMP_POINT}" word name names command="" value="" named="" file=""
    local -a words
    _duly "$@"
    read -ra words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    local last=$((${#words[@]} - 1))
    local current="${words[last]}"
    for word in "${words[@]:1:last-1}"; do
        if [[ -n "$value" ]]; then
            [[ "$value" == --db ]] && file="$word"
            value=""
            continue
        fi
        case "$word" in
            --db=*) file="${word#--db=}" ;;
            @VALUED@) value="$word" ;;
            -*) ;;
            *) if [[ -z "$command" ]]; then command="$word"; else named=1; fi ;;
        esac
    done
    case "$command,$value" in
        add,--on-dead) ;;
        @NAMED@) [[ -n "$named" || "$current" == -* ]] && return 0 ;;
        *) return 0 ;;
    esac
    if [[ -n "$file" ]]; then
        names="$(duly --db "${file/#\~\//$HOME/}" list --names 2>/dev/null)"
    else
        names="$(duly list --names 2>/dev/null)"
    fi
    local -a found=()
    while IFS= read -r name; do
        [[ -n "$name" && "$name" == "$current"* ]] && found+=("${name#"${current%"$2"}"}")
    done <<< "$names"
    [[ ${#found[@]} -gt 0 ]] && COMPREPLY=("${found[@]}")
    return 0
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _duly_names -o nosort -o bashdefault -o default duly
else
    complete -F _duly_names -o bashdefault -o default duly
fi
