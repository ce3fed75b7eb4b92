# Completes names of tasks, from the database that the command line names.
(( $+functions[_duly_names] )) ||
_duly_names() {
    local -a typed file names
    local at
    typed=(${(z)LBUFFER})
    for (( at = 2; at <= $#typed; at++ )); do
        case $typed[at] in
            --db=*) file=(--db ${${(Q)typed[at]#--db=}/#\~\//$HOME/}) ;;
            --db) file=(--db ${${(Q)typed[at+1]}/#\~\//$HOME/}) ;;
        esac
    done
    names=(${(f)"$(command duly $file list --names 2>/dev/null)"})
    compadd -a names
}

