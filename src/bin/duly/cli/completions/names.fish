
# Completes names of tasks, from the database that the command line names.
function __duly_names
    set -l file
    set -l words (commandline -opc)
    for at in (seq (count $words))
        if string match -q -- '--db=*' $words[$at]
            set file (string replace -- '--db=' '' $words[$at])
        else if test "$words[$at]" = --db; and test $at -lt (count $words)
            set file $words[(math $at + 1)]
        end
    end
    if set -q file[1]
        command duly --db (string replace -r -- '^~/' "$HOME/" $file) list --names 2>/dev/null
    else
        command duly list --names 2>/dev/null
    end
end

complete -c duly -n "__fish_duly_using_subcommand @NAMED@" -f -a "(__duly_names)"
complete -c duly -n "__fish_duly_using_subcommand add" -l on-dead -x -a "(__duly_names)"
